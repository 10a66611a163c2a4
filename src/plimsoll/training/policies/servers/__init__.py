"""Servers of a policy that take new weights while they serve, one file for each kind."""
