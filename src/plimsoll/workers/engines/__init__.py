"""What starts workers and sees them end: processes of this host, or actors of Ray."""
