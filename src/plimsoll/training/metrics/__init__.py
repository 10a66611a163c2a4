"""Metrics: the figures of each step, in metrics.jsonl and in sinks."""
