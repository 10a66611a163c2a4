"""Deaths of workers: single dead workers are replaced, and a crash loop stops the run."""

import collections
from dataclasses import dataclass

from plimsoll.core.errors import WorkerError

__all__ = ["Crashes", "Death", "cannot_start"]


@dataclass(frozen=True, slots=True)
class Death:
    """The unrequested end of a worker."""

    worker: str
    where: str
    how: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.worker} ({self.where}): {self.how}"

    def in_full(self) -> str:
        """The death with the worker's last output, for diagnosis."""
        if not self.output:
            return f"{self}. It left no output."
        return f"{self}. Its last output:\n{_indented(self.output)}"


class Crashes:
    """The recent deaths of a run."""

    def __init__(self, deaths: int, seconds: float) -> None:
        self._limit = deaths
        self._seconds = seconds
        self._times = collections.deque[float](maxlen=deaths)

    def add(self, death: Death, now: float) -> WorkerError | None:
        """Count a death. Returns the error if the limit is reached."""
        self._times.append(now)
        over = now - self._times[0]
        if len(self._times) < self._limit or over > self._seconds:
            return None
        return WorkerError(
            f"workers die repeatedly: {self._limit} deaths in {over:.0f} s. "
            f"The last one is {death.in_full()}\n"
            "The run stops: fix the cause, then resume it."
        )


def cannot_start(death: Death) -> WorkerError:
    """The error for a worker that ended before any worker was ready."""
    return WorkerError(f"a worker cannot start: {death.in_full()}")


def _indented(output: str) -> str:
    return "\n".join(f"  {line}" for line in output.splitlines())
