"""Validation: checks that the oracle reaches a task's maximum reward and nop does not."""
