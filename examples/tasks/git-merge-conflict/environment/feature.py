"""Speeds in several units."""

KMH = {"km/h": 1.0, "m/s": 3.6, "kn": 1.852}


def convert(number, unit, to):
    """A speed in another unit. A unit that is not known is a KeyError."""
    return round(number * KMH[unit] / KMH[to], 3)
