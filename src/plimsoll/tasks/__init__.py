"""Tasks: folders in the Harbor format, their model and loader, lint and staged assets."""
