"""Files of a run directory: result rows, status, and the folders of trials."""
