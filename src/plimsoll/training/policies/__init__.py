"""Policies: who answers for the policy while it is trained, and takes its new weights."""
