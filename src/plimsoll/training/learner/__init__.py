"""The learner: samples in, better weights out."""
