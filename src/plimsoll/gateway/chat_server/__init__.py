"""A Chat Completions server in front of an inference engine."""
