"""A clock that a test moves."""

__all__ = ["FakeClock"]


class FakeClock:
    """Returns the same time until it is advanced. Fits parameters that take `time.time`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self.now += seconds
