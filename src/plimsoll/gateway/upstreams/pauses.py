"""The pauses of a policy for new weights, told to those who keep time by it."""

from typing import Protocol

from plimsoll.core.stopwatch import Stopwatch

__all__ = ["Follower", "Pauses"]


class Follower(Protocol):
    """Is told when the policy is paused, and when it goes on."""

    def pause(self, *, drains: bool) -> None: ...

    def resume(self) -> None: ...


class Pauses:
    """Whether the policy is paused now.

    With `drains` it still answers the requests that it was sent before the pause, and no others;
    without, it answers none.
    """

    def __init__(self) -> None:
        self.clock = Stopwatch()
        """Stands still while the policy is paused."""
        self.drains = False
        self._followers: dict[Follower, None] = {}

    @property
    def is_paused(self) -> bool:
        return self.clock.is_stopped

    def begin(self, *, drains: bool) -> None:
        """The policy is paused. Does nothing where it is already."""
        if self.is_paused:
            return
        self.drains = drains
        self.clock.stop()
        for follower in tuple(self._followers):
            follower.pause(drains=drains)

    def end(self) -> None:
        """The policy goes on. Does nothing where it is not paused."""
        if not self.is_paused:
            return
        self.clock.go()
        for follower in tuple(self._followers):
            follower.resume()

    def follow(self, follower: Follower) -> None:
        """Tell it of pauses until `leave`; at once where the policy is paused now."""
        self._followers[follower] = None
        if self.is_paused:
            follower.pause(drains=self.drains)

    def leave(self, follower: Follower) -> None:
        self._followers.pop(follower, None)
