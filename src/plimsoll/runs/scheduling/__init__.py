"""Scheduling: which ticket runs next, on which worker, and when a group is a straggler."""
