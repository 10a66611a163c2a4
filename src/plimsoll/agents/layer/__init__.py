"""The agent layer: programs of command-line agents, installed once with `plimsoll bake`."""
