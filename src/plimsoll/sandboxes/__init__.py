"""Where agents run: one protocol, several backends.

Imports nothing, since what runs inside a sandbox loads it without any library.
"""
