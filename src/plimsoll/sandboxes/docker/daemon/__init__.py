"""The Docker daemon: its address, the connection to it, and its API."""
