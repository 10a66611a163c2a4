"""Upstreams: the servers that answer for the policy, and the gate before them."""
