"""Runs: the plan, the run directory, the scheduler, recovery, evaluations and validations."""
