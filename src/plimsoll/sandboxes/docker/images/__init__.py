"""Images of a Docker daemon: built, pulled, found and pruned."""
