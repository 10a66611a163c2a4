"""Network fetches of a task, found without running it."""
