"""Lint: static checks of task folders for faults that would make rewards worthless."""
