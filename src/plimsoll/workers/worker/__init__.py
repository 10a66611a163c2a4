"""The worker's side: the process that runs trials."""
