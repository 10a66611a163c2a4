"""Runs: their configuration, their directory, and the controllers that drive trials."""
