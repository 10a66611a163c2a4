"""The local backend: sandboxes from Linux namespaces and an overlay, without a daemon."""
