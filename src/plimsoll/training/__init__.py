"""Training: the trainer and its loop, the learner, policies that take new weights, metrics."""
