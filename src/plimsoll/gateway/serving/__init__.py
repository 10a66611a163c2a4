"""A server of Chat Completions before an engine that generates."""
