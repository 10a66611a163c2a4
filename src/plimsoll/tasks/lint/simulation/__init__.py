"""Simulation of a grader's shell script: every path through it, without running it."""
