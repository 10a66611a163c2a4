"""Sandboxes: one protocol, several backends.

This package imports nothing: code that runs inside a sandbox loads it without any library.
"""
