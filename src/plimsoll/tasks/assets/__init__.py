"""Staged assets: content that tasks fetch, stored once for sandboxes without a network."""
