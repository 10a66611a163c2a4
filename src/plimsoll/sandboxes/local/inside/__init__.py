"""What runs inside a local sandbox: its keeper, its init and the runner of a command."""
