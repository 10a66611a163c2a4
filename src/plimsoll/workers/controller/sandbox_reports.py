"""Sandbox reports of all workers of a run, dead ones included.

Memory use does not grow with the run: timings are counts in buckets, and the number of
warnings is limited.
"""

import logging

from plimsoll.sandboxes.pool.stats import Meter
from plimsoll.workers.messages import SandboxReport

__all__ = ["SandboxReports"]

_MOST_WARNINGS = 100
_ENOUGH = "workers report too many warnings; further ones are not shown"

_log = logging.getLogger(__name__)


class SandboxReports:
    """Adds up sandbox timings, and logs each warning once, no matter how many workers report it."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> list[str]:
        return list(self._warnings)

    def add(self, report: SandboxReport) -> None:
        self.meter.add(report.sandboxes)
        for warning in report.warnings:
            self._log_once(warning if len(self._warnings) < _MOST_WARNINGS else _ENOUGH)

    def _log_once(self, warning: str) -> None:
        if warning not in self._warnings:
            self._warnings[warning] = None
            _log.warning("%s", warning)
