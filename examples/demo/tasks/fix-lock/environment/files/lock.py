def lock(a, b):
    """The difference of a and b."""
    return a + b
