"""Command-line agents: programs that run inside the sandbox."""
