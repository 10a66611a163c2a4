"""Versions of the policy's weights, and which of them descend from which.

A version is a number within a lineage. A run that restarts from an older checkpoint begins a
new lineage there: what the dead end of the old one produced has the same numbers, and is
never mistaken for what the new one produces.
"""

import msgspec

__all__ = ["FIRST_VERSION", "Lineages", "Version", "read_version"]


class Version(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A version of the weights. Only numbers on one line of descent can be compared."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.number}" if self.lineage == 0 else f"{self.lineage}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Version":
        """The version that `str` made this of. Raises `ValueError` for any other text."""
        lineage, _, number = text.rpartition(":")
        version = cls(int(lineage or 0), int(number))
        if str(version) != text:
            raise ValueError(f"{text!r} is no version")
        return version


FIRST_VERSION = Version(0, 0)


def read_version(text: str) -> Version:
    """A version as `str` writes it. Raises ValueError for what is none."""
    lineage, colon, number = text.rpartition(":")
    if not number.isdecimal() or (colon and not lineage.isdecimal()):
        raise ValueError(f"{text[:40]!r} is no version")
    return Version(int(lineage or 0), int(number))


class Lineages:
    """The tree of lineages: each but the first branched off from a version of another."""

    def __init__(self) -> None:
        self._parents: dict[int, Version] = {}

    @property
    def parents(self) -> dict[int, Version]:
        """For each lineage but the first, the version that it branched off from."""
        return dict(self._parents)

    def branch(self, lineage: int, parent: Version) -> None:
        self._parents[lineage] = parent

    def next_lineage(self) -> int:
        return max(self._parents, default=0) + 1

    def descends(self, later: Version, earlier: Version) -> bool:
        """Whether the weights of `later` were trained from those of `earlier`, or are them.

        A lineage has no version below the one it branched off from: such a version descends from
        nothing, and nothing from it.
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
