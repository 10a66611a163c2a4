"""Sandboxes from Linux namespaces and an overlay: no daemon, nothing to install."""
