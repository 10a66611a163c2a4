"""The trials about to start: which sandboxes they will ask for.

A trial says what it will build and start before it does. What image that is, is known from
the last build of an equal source; until there is one, its expectation is of no known image.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.pool.keys import PoolKey, source_key, spec_key
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec

__all__ = ["Demand", "DemandEntry", "DemandSummary", "Expectation"]


@dataclass(eq=False, slots=True)
class Expectation:
    """Sandboxes that will be asked for. Leases take from it what they are given."""

    source: str
    spec: SandboxSpec
    remaining: int
    _changed: Callable[[], None]
    spec_key: str = field(init=False)

    def __post_init__(self) -> None:
        self.spec_key = spec_key(self.spec)

    def claim(self, labels: Labels) -> None:
        """It is for whoever asks with these labels."""
        self.spec = replace(self.spec, labels=labels)

    def withdraw(self) -> None:
        """Nobody will ask for what remains. May be called again."""
        if self.remaining:
            self.remaining = 0
            self._changed()


@dataclass(slots=True)
class DemandEntry:
    """How many sandboxes of one key are expected to be asked for."""

    image: Image
    spec: SandboxSpec
    count: int = 0


@dataclass(slots=True)
class DemandSummary:
    """All that is expected, the first to be asked for first."""

    by_key: dict[PoolKey, DemandEntry] = field(default_factory=dict[PoolKey, DemandEntry])
    unknown: int = 0
    """Expected of images that are not known yet."""

    def count(self, key: PoolKey) -> int:
        return self.by_key[key].count if key in self.by_key else 0


@dataclass(slots=True)
class Demand:
    """Every expectation that is not yet met."""

    _changed: Callable[[], None]
    _expectations: list[Expectation] = field(default_factory=list[Expectation])
    _images: dict[str, Image] = field(default_factory=dict[str, Image])

    def expect(self, source: ImageSource, spec: SandboxSpec, count: int) -> Expectation:
        made = Expectation(source_key(source), spec, count, self._changed)
        if count:
            self._expectations.append(made)
            self._changed()
        return made

    def built(self, source: ImageSource, image: Image) -> None:
        self._images[source_key(source)] = image

    def serve(self, key: PoolKey, labels: Labels) -> None:
        """Somebody asks for this key: the expectation with their labels, or the oldest, is met."""
        fitting = [one for one in self._expectations if one.remaining and self._key(one) == key]
        own = (one for one in fitting if one.spec.labels.ticket == labels.ticket)
        if fitting:
            next(own, fitting[0]).remaining -= 1

    def wants(self) -> DemandSummary:
        self._expectations = [one for one in self._expectations if one.remaining]
        wants = DemandSummary()
        for one in self._expectations:
            if (image := self._images.get(one.source)) is None:
                wants.unknown += one.remaining
            else:
                key = PoolKey(image.key, one.spec_key)
                wants.by_key.setdefault(key, DemandEntry(image, one.spec)).count += one.remaining
        return wants

    def _key(self, one: Expectation) -> PoolKey | None:
        image = self._images.get(one.source)
        return None if image is None else PoolKey(image.key, one.spec_key)
