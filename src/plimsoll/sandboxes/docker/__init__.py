"""Sandboxes as containers of a Docker engine, here or elsewhere."""
