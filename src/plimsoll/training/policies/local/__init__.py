"""The policy served by the trainer's own process."""
