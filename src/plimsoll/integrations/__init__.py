"""Integrations: Plimsoll's rollouts in other trainers."""
