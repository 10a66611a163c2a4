"""What acts in a sandbox: the oracle, nop, and later the real ones."""
