"""Reads and writes durations such as 1h30m or 250ms."""
