"""Metrics: sends the figures of each step to sinks, and plots them."""
