"""Trains the policy: policies that answer and take weights, losses, the learner, the trainer."""
