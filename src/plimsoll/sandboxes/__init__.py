"""Sandboxes: one protocol, several backends.

This file imports nothing, because code inside a sandbox imports the package with the standard
library alone.
"""
