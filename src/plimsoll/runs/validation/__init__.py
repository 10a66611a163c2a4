"""Validation: whether the oracle reaches a task's maximum reward and nop does not."""
