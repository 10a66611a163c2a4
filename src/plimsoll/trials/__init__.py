"""One attempt at one task: its lifecycle, its verifier, its verdict."""
