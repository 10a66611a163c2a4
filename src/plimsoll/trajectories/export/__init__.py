"""Trajectories for people and other tools: terminal output, ATIF, JSON lines."""
