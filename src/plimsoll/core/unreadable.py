"""What reading JSON raises that somebody else wrote: a policy, an agent, a server."""

__all__ = ["UNREADABLE"]

UNREADABLE = (ValueError, RecursionError)
"""It is no JSON, not what was expected, or not UTF-8: all errors of msgspec and of the standard
library are a ValueError. Or it is nested too deeply, which neither of them counts among those."""
