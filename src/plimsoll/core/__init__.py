"""Errors, ids, clocks and small types that every other package uses."""
