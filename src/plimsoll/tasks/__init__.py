"""Task folders in the Harbor format: the model, the loader, the Dockerfile parser."""
