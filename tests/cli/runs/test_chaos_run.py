"""A whole run whose workers, controller and cluster nodes are killed at random.

PLIMSOLL_CHAOS_SECONDS sets its duration, PLIMSOLL_CHAOS_SEED the seed.
"""

import contextlib
import json
import os
import random
import re
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import (
    Plimsoll,
    Start,
    check_ledger,
    no_sandbox,
    prompts,
    wait_for,
    wait_until_gone,
)
from run_files import write_run as write_config

from helpers import long_time, marked, processes_with
from parts import NIGHTLY
from plimsoll.ledger.journal.journal import Journal
from plimsoll.ledger.ledger import read_books
from ray_nodes import ray_cluster

SECONDS = float(os.environ.get("PLIMSOLL_CHAOS_SECONDS", 150 if NIGHTLY else 15))
SEED = int(os.environ.get("PLIMSOLL_CHAOS_SEED", "7"))
BEGIN = ("run", "night.toml", "--out", "runs/night")
GROUPS, WORKERS, NODES = 2, 2, 2
GRADE = "#!/bin/bash\ntest -f /tmp/done; echo $((1-$?)) >/logs/verifier/reward.txt\n"
ENDINGS = {signal.SIGKILL: (-signal.SIGKILL,), signal.SIGTERM: (128 + signal.SIGTERM, -15)}
"""The exit statuses by signal. Early SIGTERM, before its handler is installed, gives -15."""


class Chaos:
    """Starts and resumes a run, and kills its workers, nodes and controllers at random."""

    def __init__(self, start: Start, folder: Path, mark: str, cluster: Any) -> None:
        self.run = folder / "runs/night"
        self.kills: Counter[str] = Counter()
        self._random = random.Random(SEED)
        self._start = start
        self._mark = mark
        self._cluster = cluster
        self._nodes = list(cluster.worker_nodes) if cluster is not None else []

    def kill_at_random(self) -> None:
        """Run for SECONDS, and until at least one worker and one node, if any, were killed."""
        until = time.monotonic() + SECONDS
        kinds = ("worker", "node") if self._nodes else ("worker",)
        while (
            time.monotonic() < until or not self._has_started or not all(map(self.kills.get, kinds))
        ):
            # No wait: workers of the previous controller may still be running.
            again = ("resume", "runs/night")
            process = self._start(*(again if self._has_started else BEGIN))
            for _ in range(self._random.randint(1, 3)):
                self._await_progress(process)
                self._kill_worker_or_node()
            self._end_controller(process)

    @property
    def _has_started(self) -> bool:
        return (self.run / "ledger.db").exists()

    def _await_progress(self, process: "subprocess.Popen[str]") -> None:
        if self._random.random() < 0.2:
            time.sleep(self._random.uniform(0.0, 2.0))  # perhaps before the run has started
            return
        done = finished(self.run)
        wait_for(lambda: finished(self.run) > done, process)
        time.sleep(self._random.uniform(0.0, 0.7))

    def _kill_worker_or_node(self) -> None:
        if self._nodes and self._random.random() < 0.3:
            self._kill_node()
            return
        pids = [pid for pid, what in marked(self._mark).items() if "plimsoll.workers" in what]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(pids), signal.SIGKILL)
                self.kills["worker"] += 1

    def _kill_node(self) -> None:
        node = self._nodes.pop(self._random.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(num_cpus=WORKERS))
        self.kills["node"] += 1

    def _end_controller(self, process: "subprocess.Popen[str]") -> None:
        sign = self._random.choices([signal.SIGKILL, signal.SIGTERM], [3, 1])[0]
        process.send_signal(sign)
        out, err = process.communicate(timeout=300)
        assert process.returncode in ENDINGS[sign], out + err
        self.kills["controller"] += 1


@pytest.fixture(params=["process", "ray"])
def cluster(request: pytest.FixtureRequest, mark: str) -> Any:
    """The Ray cluster that workers run on, or None for processes of this host."""
    if request.param == "process":
        yield None
        return
    request.getfixturevalue("ray_part")
    with ray_cluster() as made:
        for _ in range(NODES):
            made.add_node(num_cpus=WORKERS)
        yield made


def write_run(folder: Path, cluster: Any, word: str) -> None:
    """Write a run that would take days, with a word in the command lines of its agents."""
    config = write_config(folder, agent="shell", steps=1_000_000, requeues=1000)
    engine = "process" if cluster is None else "ray"
    workers = f'[workers]\nengine = "{engine}"\nnumber = {WORKERS}\n'
    text = config.read_text().replace("[workers]\n", workers)
    if cluster is not None:
        text += f'[workers.ray]\naddress = "{cluster.address}"\nresources = {{ CPU = 1 }}\n'
    config.write_text(text + '[policy]\nurls = ["scripted:policy.toml"]\n')
    does = f": {word}; sleep 0.2; touch /tmp/done"
    (folder / "policy.toml").write_text(f'[[turns]]\nrun = "{does}"\n')


def finished(run: Path) -> int:
    """The number of finished trials. An incomplete last line does not count."""
    path = run / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def end_after(run: Path, steps: int) -> int:
    """Set a run to end after `steps` more steps. Returns its total number of steps."""
    journal = Journal.open(run / "ledger.db")
    total = read_books(journal).version.number + steps
    journal.close()
    config = run / "config.toml"
    config.write_text(re.sub(r"(?m)^steps = .*", f"steps = {total}", config.read_text()))
    return total


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 1500)
def test_after_random_kills_no_prompt_is_lost_or_used_twice_and_nothing_is_left(
    cluster: Any,
    write_task: Callable[..., Path],
    plimsoll: Plimsoll,
    start: Start,
    tmp_path: Path,
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for number in range(5):
        write_task(f"t{number}", test=GRADE)
    word = long_time()
    write_run(tmp_path, cluster, word)
    chaos = Chaos(start, tmp_path, mark, cluster)
    chaos.kill_at_random()
    assert cluster is None or chaos.kills["node"], "no node was killed"
    total = end_after(chaos.run, 3)
    # Workers may outlive the last controller. The next one removes their leftovers.
    wait_until_gone(mark, "plimsoll.workers")
    ended = plimsoll("resume", "runs/night", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert (report["steps"], report["problems"], len(report["rewards"])) == (total, [], total)
    assert sorted(prompts(chaos.run)) == list(range(total * GROUPS))
    assert set(report["void"]) <= {"lost", "cancelled"}
    assert report["void"]["lost"]
    check_ledger(plimsoll, "runs/night")
    # Not "plimsoll" alone: Ray's processes keep running, and their paths may contain that word.
    wait_until_gone(mark, "-m plimsoll")
    assert processes_with(word) == []
    assert no_sandbox(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sockets(tmp_path) == []
