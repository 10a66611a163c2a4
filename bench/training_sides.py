"""One side of `bench_training.py`: a `plimsoll run`, and the figures from its directory."""

import asyncio
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Row
from plimsoll.runs.files.status import RunSummary
from plimsoll.runs.files.steps import Step
from plimsoll.trials.record import VerdictFile
from plimsoll.workers.worker.trajectory_store import read_stored

__all__ = ["Figures", "Side", "Work", "run_side"]

FIRST = 1
"""Steps that fill the pipeline and are not counted."""

CONFIG = """\
[run]
tasks = "{work.tasks}"
group_size = {work.group}
batch_groups = {work.groups}
steps = {steps}
canary_every = 0
max_running = {work.at_once}
{ahead}
[training]
policy = "torch"
model = "{work.model}"
mode = "{mode}"
learning_rate = 1e-6
micro_tokens = 1024
checkpoint_every = 10

[workers]
concurrency = {work.at_once}
"""
AHEAD = """\
depth = {depth}
max_staleness = {eta}
"""


@dataclass(frozen=True, slots=True)
class Side:
    """The pipeline depth and staleness bound of a side. With 0 it trains synchronously."""

    name: str
    depth: int = 0
    eta: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The workload of every side."""

    tasks: Path
    model: Path
    group: int
    groups: int
    steps: int
    """Counted steps."""
    at_once: int
    threads: int
    straggler_seconds: float
    """Duration of a straggler's sleep, in seconds."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the trainer's time by activity."""

    update: float
    publish: float
    checkpoint: float
    read: float
    idle: float
    """Waiting for a batch."""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """Means over trials, in seconds."""

    whole: float
    generate: float
    """Requests to the policy."""
    sandbox: float
    """Building, starting and removing the sandbox."""
    commands: float
    """The agent, without its requests."""
    tests: float
    stragglers: float
    """The share of trials that drew the long sleep."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a side over the counted steps."""

    steps: int
    seconds: float
    whole: float
    """Steps per minute over the whole run, from its first trial on."""
    update: float
    """Median seconds of an update."""
    tokens: float
    """Median number of trained tokens per step."""
    age: int
    eta: int
    shares: Shares
    trials: Trials
    void: int
    cpu: float
    """CPU seconds per step, of all processes, including their start."""
    load: float
    """Load average of the machine over the last minute, at the end."""

    @property
    def per_minute(self) -> float:
        return 60 * self.steps / self.seconds


async def run_side(side: Side, work: Work, out: Path) -> Figures:
    """Train one side in a separate process."""
    # The last steps have no rollouts running ahead: they run, but are not counted.
    steps = FIRST + work.steps + side.depth
    ahead = AHEAD.format(depth=side.depth, eta=side.eta) if side.eta else ""
    mode = "async" if side.eta else "sync"
    config = out.with_suffix(".toml")
    config.write_text(CONFIG.format(work=work, steps=steps, ahead=ahead, mode=mode))
    before = _cpu()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "plimsoll", "run", str(config), "--out", str(out), "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(work.threads)},
    )
    stdout, stderr = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{side.name}: {stderr.decode(errors='replace').strip()}")
    summary = msgspec.json.decode(stdout.splitlines()[-1], type=RunSummary)
    return _figures(side, work, RunDirectory(out), summary, _cpu() - before)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(
    side: Side, work: Work, directory: RunDirectory, summary: RunSummary, cpu: float
) -> Figures:
    every = msgspec.json.Decoder(Step).decode_lines(directory.steps.read_bytes())
    counted = every[FIRST : FIRST + work.steps]
    seconds = counted[-1].at - every[FIRST - 1].at
    begun = every[0].at - every[0].seconds.phases
    return Figures(
        steps=len(counted),
        seconds=seconds,
        whole=60 * len(every) / (every[-1].at - begun),
        update=statistics.median(line.seconds.update or 0.0 for line in counted),
        tokens=statistics.median(line.update.tokens for line in counted if line.update),
        age=summary.max_age,
        eta=side.eta,
        shares=_shares(counted, seconds),
        trials=_trials(directory, work),
        void=sum(summary.void.values()),
        cpu=cpu / len(every),
        load=os.getloadavg()[0],
    )


def _shares(lines: Sequence[Step], seconds: float) -> Shares:
    spent = [line.seconds for line in lines]
    return Shares(
        update=sum(each.update or 0.0 for each in spent) / seconds,
        publish=sum(each.publish or 0.0 for each in spent) / seconds,
        checkpoint=sum(each.checkpoint or 0.0 for each in spent) / seconds,
        read=sum(each.read or 0.0 for each in spent) / seconds,
        idle=sum(each.wait for each in spent) / seconds,
    )


def _trials(directory: RunDirectory, work: Work) -> Trials:
    rows = msgspec.json.Decoder(Row).decode_lines(directory.results.read_bytes())
    rows = [row for row in rows if row.verdict == "graded"]
    files = [directory.rollout(row.task, row.ticket) / "verdict.json" for row in rows]
    verdicts = [msgspec.json.decode(file.read_bytes(), type=VerdictFile) for file in files]
    files = [directory.stored(row.trajectory) for row in rows]
    requests = [sum(exchange.seconds for exchange in read_stored(file).exchanges) for file in files]

    def mean(*names: str) -> float:
        return statistics.mean(sum(each.phases.get(n, 0.0) for n in names) for each in verdicts)

    whole, generate, tests = (
        statistics.mean(each.seconds for each in verdicts),
        statistics.mean(requests),
        mean("verifier"),
    )
    commands = mean("agent") - generate
    return Trials(
        whole=whole,
        generate=generate,
        commands=commands,
        tests=tests,
        sandbox=whole - generate - commands - tests,
        stragglers=statistics.mean(
            each.phases.get("verifier", 0.0) >= work.straggler_seconds for each in verdicts
        ),
    )
