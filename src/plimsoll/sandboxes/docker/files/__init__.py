"""Files of this host for containers: bind mounts, volumes, tar streams."""
