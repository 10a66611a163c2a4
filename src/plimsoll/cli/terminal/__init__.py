"""The terminal: console, streams, signals, progress, runs in the foreground."""
