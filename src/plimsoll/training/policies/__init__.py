"""Policies in training: local or remote servers that generate and take new weights."""
