"""Host utilities shared by the backends: owners, locks, temporary folders, disk space."""
