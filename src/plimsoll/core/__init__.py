"""Errors, ids and small types that every room shares. No I/O."""
