"""Agents: oracle, nop, the built-in shell agent, and command-line agents."""
