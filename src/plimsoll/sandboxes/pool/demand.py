"""The demand: sandboxes that trials will lease soon.

A trial announces the image and the specification of its sandbox before it builds and starts it.
The image is known from the last build of an equal source; before that it counts as unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from plimsoll.core.ids import Labels
from plimsoll.sandboxes.pool.keys import PoolKey, source_key, spec_key
from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec

__all__ = ["Demand", "DemandEntry", "DemandSummary", "Expectation"]


@dataclass(eq=False, slots=True)
class Expectation:
    """Sandboxes that will be leased soon. Each lease reduces `remaining`."""

    source: str
    spec: SandboxSpec
    remaining: int
    _changed: Callable[[], None]
    spec_key: str = field(init=False)

    def __post_init__(self) -> None:
        self.spec_key = spec_key(self.spec)

    def claim(self, labels: Labels) -> None:
        """Assign the expectation to the ticket of these labels."""
        self.spec = replace(self.spec, labels=labels)

    def withdraw(self) -> None:
        """Withdraw the remaining count. May be repeated."""
        if self.remaining:
            self.remaining = 0
            self._changed()


@dataclass(slots=True)
class DemandEntry:
    """The expected number of leases of one key."""

    image: Image
    spec: SandboxSpec
    count: int = 0


@dataclass(slots=True)
class DemandSummary:
    """All expected leases, the earliest first."""

    by_key: dict[PoolKey, DemandEntry] = field(default_factory=dict[PoolKey, DemandEntry])
    unknown: int = 0
    """Expected leases whose image is not known yet."""

    def count(self, key: PoolKey) -> int:
        return self.by_key[key].count if key in self.by_key else 0


@dataclass(slots=True)
class Demand:
    """The expectations that are not met yet."""

    _changed: Callable[[], None]
    _expectations: list[Expectation] = field(default_factory=list[Expectation])
    _images: dict[str, Image] = field(default_factory=dict[str, Image])

    def expect(self, source: ImageSource, spec: SandboxSpec, count: int) -> Expectation:
        expectation = Expectation(source_key(source), spec, count, self._changed)
        if count:
            self._expectations.append(expectation)
            self._changed()
        return expectation

    def built(self, source: ImageSource, image: Image) -> None:
        self._images[source_key(source)] = image

    def serve(self, key: PoolKey, labels: Labels) -> None:
        """Count a lease against the expectation of its ticket, or else the oldest one."""
        matching = [
            expectation
            for expectation in self._expectations
            if expectation.remaining and self._key(expectation) == key
        ]
        own = (
            expectation
            for expectation in matching
            if expectation.spec.labels.ticket == labels.ticket
        )
        if matching:
            next(own, matching[0]).remaining -= 1

    def summary(self) -> DemandSummary:
        self._expectations = [
            expectation for expectation in self._expectations if expectation.remaining
        ]
        summary = DemandSummary()
        for expectation in self._expectations:
            if (image := self._images.get(expectation.source)) is None:
                summary.unknown += expectation.remaining
            else:
                key = PoolKey(image.key, expectation.spec_key)
                summary.by_key.setdefault(
                    key, DemandEntry(image, expectation.spec)
                ).count += expectation.remaining
        return summary

    def _key(self, expectation: Expectation) -> PoolKey | None:
        image = self._images.get(expectation.source)
        return None if image is None else PoolKey(image.key, expectation.spec_key)
