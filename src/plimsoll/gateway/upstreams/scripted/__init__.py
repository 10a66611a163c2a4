"""The scripted policy: answers from a script, with tokens and faults, for tests and demos."""
