"""Sandboxes whose pid 1 is Plimsoll's own init, controlled over one byte stream."""
