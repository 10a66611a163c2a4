"""Rollouts of Plimsoll in the trainers of others."""
