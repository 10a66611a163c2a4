"""Sandbox reports of workers: timings are added up, warnings are logged once."""

import pytest

from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.workers.controller.sandbox_reports import SandboxReports
from plimsoll.workers.messages import SandboxReport


def test_a_warning_of_many_workers_is_logged_once(caplog: pytest.LogCaptureFixture):
    gathered = SandboxReports()
    gathered.add(SandboxReport(warnings=("no limit on storage", "no limit on memory")))
    gathered.add(SandboxReport(warnings=("no limit on storage",)))
    assert caplog.messages == ["no limit on storage", "no limit on memory"] == gathered.warnings


def test_the_number_of_logged_warnings_is_limited(caplog: pytest.LogCaptureFixture):
    gathered = SandboxReports()
    for number in range(1000):
        gathered.add(SandboxReport(warnings=(f"sandbox {number} could not be removed",)))
    assert len(caplog.messages) == len(gathered.warnings) == 101
    assert caplog.messages[-1].endswith("further ones are not shown")


def test_leases_of_all_workers_are_counted_together():
    gathered = SandboxReports()
    for _ in range(3):
        gathered.add(SandboxReport(sandboxes=Readings(warm={10: 2}, cold={90: 1}, start={90: 1})))
    stats = gathered.meter.stats(Reuse.FRESH)
    assert (stats.hits, stats.cold_starts) == (6, 3)
