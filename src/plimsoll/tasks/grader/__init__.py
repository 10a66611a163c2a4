"""The tests of a step, parsed: shell scripts, Python files and test runners."""
