"""Images of the local backend: base file systems, layers and the Dockerfile builder."""
