"""Sandboxes as containers of a Docker daemon, local or remote."""
