"""Sandboxes whose pid 1 is Plimsoll's own init, spoken to over one stream of bytes."""
