"""Engines that start workers and observe their end: processes of this host, or Ray actors."""
