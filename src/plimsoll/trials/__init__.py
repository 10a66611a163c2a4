"""Trials: one execution of a task by an agent in a sandbox, from image to verdict."""
