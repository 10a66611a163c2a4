"""The local backend on the host: its home, control groups, processes and removal."""
