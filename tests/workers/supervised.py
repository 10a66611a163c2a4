"""Supervisors under test: their options, and their leftover processes."""

import re
import secrets
import time
from collections.abc import Callable

from helpers import marked
from plimsoll.workers.controller.roster import WorkerTimeouts
from plimsoll.workers.controller.supervisor import SupervisorOptions
from plimsoll.workers.engines.protocol import Engine

__all__ = ["Engines", "Mark", "options", "pid_of"]

Engines = Callable[[], Engine]


def options(deaths: int = 100, **timeouts: float) -> SupervisorOptions:
    """Short time limits, so that tests are fast, but a high limit on deaths."""
    waits = {"dead_after": 5.0, "end_within": 5.0, **timeouts}
    return SupervisorOptions(timeouts=WorkerTimeouts(**waits), crash_deaths=deaths)


def pid_of(where: str) -> int:
    found = re.search(r"pid (\d+)", where)
    assert found is not None, where
    return int(found[1])


class Mark:
    """A value of the variable that marks all processes of a test, whatever their names."""

    def __init__(self) -> None:
        self.value = secrets.token_hex(8)

    def processes(self) -> dict[int, str]:
        """The command lines of the marked processes, by process id."""
        return marked(self.value)

    def gone(self, within: float = 60.0) -> None:
        """Fail if a marked process still exists after this many seconds."""
        deadline = time.monotonic() + within
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
