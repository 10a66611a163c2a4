"""Networks of containers, and the egress proxy of an allowlist."""
