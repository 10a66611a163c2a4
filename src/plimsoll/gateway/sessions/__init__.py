"""One trial's access to the policy: its key, its limits, its record."""
