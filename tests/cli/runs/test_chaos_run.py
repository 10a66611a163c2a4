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
    checked,
    marked,
    no_sandbox,
    prompts,
    wait_for,
    wait_until_gone,
)
from run_files import write_run as write_config

from helpers import long_time, processes_with
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
"""How it exits; where it was hardly there, by the signal itself."""


class Chaos:
    """Lets a run live again and again, and does away with what it is made of."""

    def __init__(self, start: Start, folder: Path, mark: str, cluster: Any) -> None:
        self.run = folder / "runs/night"
        self.done: Counter[str] = Counter()
        self._random = random.Random(SEED)
        self._start = start
        self._mark = mark
        self._cluster = cluster
        self._nodes = list(cluster.worker_nodes) if cluster is not None else []

    def rage(self) -> None:
        """For so long, and until one at least of each kind was killed."""
        until = time.monotonic() + SECONDS
        kinds = ("worker", "node") if self._nodes else ("worker",)
        while time.monotonic() < until or not self._is_run or not all(map(self.done.get, kinds)):
            # At once: workers of the life before may still be about to end.
            again = ("resume", "runs/night")
            process = self._start(*(again if self._is_run else BEGIN))
            for _ in range(self._random.randint(1, 3)):
                self._await_progress(process)
                self._harm()
            self._end(process)

    @property
    def _is_run(self) -> bool:
        return (self.run / "ledger.db").exists()

    def _await_progress(self, process: "subprocess.Popen[str]") -> None:
        if self._random.random() < 0.2:
            time.sleep(self._random.uniform(0.0, 2.0))  # perhaps before it has begun
            return
        done = finished(self.run)
        wait_for(lambda: finished(self.run) > done, process)
        time.sleep(self._random.uniform(0.0, 0.7))

    def _harm(self) -> None:
        if self._nodes and self._random.random() < 0.3:
            self._kill_node()
            return
        pids = [pid for pid, what in marked(self._mark).items() if "plimsoll.workers" in what]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(pids), signal.SIGKILL)
                self.done["worker"] += 1

    def _kill_node(self) -> None:
        node = self._nodes.pop(self._random.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(num_cpus=WORKERS))
        self.done["node"] += 1

    def _end(self, process: "subprocess.Popen[str]") -> None:
        sign = self._random.choices([signal.SIGKILL, signal.SIGTERM], [3, 1])[0]
        process.send_signal(sign)
        out, err = process.communicate(timeout=300)
        assert process.returncode in ENDINGS[sign], out + err
        self.done["controller"] += 1


@pytest.fixture(params=["process", "ray"])
def cluster(request: pytest.FixtureRequest, mark: str) -> Any:
    """What workers run on: None for this host alone."""
    if request.param == "process":
        yield None
        return
    request.getfixturevalue("ray_part")
    with ray_cluster() as made:
        for _ in range(NODES):
            made.add_node(num_cpus=WORKERS)
        yield made


def write_run(folder: Path, cluster: Any, word: str) -> None:
    """A run that would go on for days, with a word in the command lines of its agents."""
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
    """Trials that have come to their end; a line may be cut short."""
    path = run / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def end_after(run: Path, steps: int) -> int:
    """Have a run end after so many steps more; how many it will have made."""
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
    chaos.rage()
    assert cluster is None or chaos.done["node"], "no node was killed"
    total = end_after(chaos.run, 3)
    # What a worker leaves that dies after the last life has ended is for the next to reap.
    wait_until_gone(mark, "plimsoll.workers")
    ended = plimsoll("resume", "runs/night", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert (told["steps"], told["problems"], len(told["rewards"])) == (total, [], total)
    assert sorted(prompts(chaos.run)) == list(range(total * GROUPS))
    assert set(told["void"]) <= {"lost", "cancelled"}
    assert told["void"]["lost"]
    checked(plimsoll, "runs/night")
    # Not "plimsoll" alone: Ray's processes live on, and may have it in the paths of their commands.
    wait_until_gone(mark, "-m plimsoll")
    assert processes_with(word) == []
    assert no_sandbox(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sockets(tmp_path) == []
