"""Versions of the policy's weights, and their lineages.

A version is a number within a lineage. A run that restarts from an older checkpoint begins a new
lineage there. Samples of the abandoned lineage have the same numbers, and are never mistaken for
samples of the new one.
"""

import msgspec

__all__ = ["FIRST_VERSION", "Lineages", "Version"]


class Version(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A version of the weights. Only numbers of the same line of descent can be compared."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.number}" if self.lineage == 0 else f"{self.lineage}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Parse a version as `str` writes it. Raises `ValueError` for any other text."""
        lineage, colon, number = text.rpartition(":")
        if not number.isdecimal() or (colon and not lineage.isdecimal()):
            raise ValueError(f"{text[:40]!r} is not a version")
        return cls(int(lineage or 0), int(number))


FIRST_VERSION = Version(0, 0)


class Lineages:
    """The tree of lineages. Each lineage but the first branched off from a version of another."""

    def __init__(self) -> None:
        self._parents: dict[int, Version] = {}

    @property
    def parents(self) -> dict[int, Version]:
        """For each lineage but the first, the version it branched off from."""
        return dict(self._parents)

    def branch(self, lineage: int, parent: Version) -> None:
        self._parents[lineage] = parent

    def next_lineage(self) -> int:
        return max(self._parents, default=0) + 1

    def descends(self, later: Version, earlier: Version) -> bool:
        """Whether the weights of `later` are those of `earlier` or were trained from them.

        A lineage has no version below the one it branched off from: such a version has no
        ancestors and no descendants.
        """
        at = later
        while True:
            parent = self._parents.get(at.lineage)
            first = FIRST_VERSION.number if parent is None else parent.number
            if at.number < first:
                return False
            if at.lineage == earlier.lineage:
                return first <= earlier.number <= at.number
            if parent is None:
                return False
            at = parent
