"""Evaluations: `plimsoll eval`, and the held-out tasks of a run."""
