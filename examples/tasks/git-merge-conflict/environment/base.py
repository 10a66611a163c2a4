"""Speeds in several units."""

KMH = {"km/h": 1.0, "m/s": 3.6}


def convert(number, unit, to):
    """A speed in another unit. A unit that is not known is a KeyError."""
    return number * KMH[unit] / KMH[to]
