"""Asynchronous against synchronous training, with straggling environments.

Every side trains the same model on the same tasks, with the same batches and the same number of
steps; trainer, policy, gateway, workers, sandboxes and ledger are those of any run. The durations
of environments are artificial: lognormal, with one trial in twenty at 50 medians. So are rewards,
which are coin tosses: the benchmark measures speed, not learning. A straggler takes as long as four
synchronous updates here, which are measured first: as many as a staleness of 4 can hide.

Torch has one thread on every side: the learner is as fast beside rollouts as alone, as if it had
its own device. The first step, which fills the pipeline, does not count, nor do the last steps,
which have nothing ahead of them.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from training_sides import Figures, Side, Work, run_side
from training_work import SLOW, make_model, make_tasks

SYNC = Side("sync")
SIDES = {
    side.name: side
    for side in (
        SYNC,
        Side("async τ=1 η=2", depth=1, eta=2),
        Side("async τ=3 η=4", depth=3, eta=4),
    )
}
TARGET_SIDE = "async τ=3 η=4"
SPEEDUP_TARGET, IDLE_TARGET = 2.5, 0.10
QUICK = 0.01
"""Seconds of an environment whose duration is negligible."""


def show(console: Console, found: dict[str, Figures]) -> None:
    table = Table("trainer", box=None, pad_edge=False)
    ages = ("× sync", "age", "≤ η")
    phases = ("update", "publish", "checkpoint", "read", "idle")
    headings = (
        "steps",
        "steps/min",
        *ages,
        *phases,
        "update s",
        "overall/min",
        "CPU s/step",
        "load",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, side in found.items():
        shares = side.shares
        table.add_row(
            *(name, str(side.steps), f"{side.per_minute:.2f}", _ratio(found, side)),
            *(str(side.age), str(side.eta)),
            *(f"{100 * share:.0f} %" for share in msgspec.structs.astuple(shares)),
            *(f"{side.update:.1f}", f"{side.whole:.2f}", f"{side.cpu:.1f}", f"{side.load:.1f}"),
        )
    console.print(table)


def _ratio(found: dict[str, Figures], side: Figures) -> str:
    sync = found.get(SYNC.name)
    return "" if sync is None else f"{side.per_minute / sync.per_minute:.2f}"


def show_trials(console: Console, found: dict[str, Figures]) -> None:
    table = Table("a trial", box=None, pad_edge=False)
    for heading in ("seconds", "generate", "sandbox", "commands", "tests", "straggling", "void"):
        table.add_column(heading, justify="right")
    for name, side in found.items():
        trials = side.trials
        parts = (trials.generate, trials.sandbox, trials.commands, trials.tests)
        table.add_row(
            *(name, f"{trials.whole:.2f}"),
            *(f"{100 * part / trials.whole:.0f} %" for part in parts),
            *(f"{100 * trials.stragglers:.1f} %", str(side.void)),
        )
    console.print(table)


def targets(found: dict[str, Figures]) -> Iterable[str]:
    for name, side in found.items():
        verdict = "pass" if side.age <= side.eta else "MISS"
        yield f"{verdict}  {name}: greatest age trained on {side.age} (≤ {side.eta})"
    if (figures := found.get(TARGET_SIDE)) is None:
        return
    idle = figures.shares.idle
    verdict = "pass" if idle < IDLE_TARGET else "MISS"
    yield (
        f"{verdict}  {TARGET_SIDE}: the trainer is idle {100 * idle:.1f} % "
        f"(< {100 * IDLE_TARGET:.0f} %)"
    )
    if (sync := found.get(SYNC.name)) is not None:
        speedup = figures.per_minute / sync.per_minute
        verdict = "pass" if speedup >= SPEEDUP_TARGET else "MISS"
        yield f"{verdict}  {TARGET_SIDE}: {speedup:.2f} × sync (≥ {SPEEDUP_TARGET:g})"


@contextlib.contextmanager
def folder_for(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as temporary:
        yield Path(temporary)


async def measure_update(work: Work, folder: Path) -> float:
    """Seconds of an update without concurrent rollouts."""
    quick = replace(work, tasks=folder / "quick", steps=3, straggler_seconds=QUICK * SLOW)
    make_tasks(quick.tasks, QUICK)
    return (await run_side(SYNC, quick, folder / "first")).update


async def measure(
    names: Iterable[str], work: Work, folder: Path, console: Console
) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for number, name in enumerate(names):
        with console.status(name):
            found[name] = await run_side(SIDES[name], work, folder / f"side-{number}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16, help="counted steps of each side")
    parser.add_argument(
        "--straggle", type=float, default=4.0, help="duration of a straggler, in updates"
    )
    parser.add_argument(
        "--median", type=float, help="median seconds of an environment, instead of --straggle"
    )
    parser.add_argument("--width", type=int, default=4096, help="width of the model's layers")
    parser.add_argument("--at-once", type=int, default=64, help="concurrent trials")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument(
        "--quick", action="store_true", help="take a few minutes: six steps, two sides"
    )
    parser.add_argument("--folder", type=Path, help="folder in which to keep the runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=160)
    names = options.side or ([SYNC.name, TARGET_SIDE] if options.quick else SIDES)
    with folder_for(options.folder) as folder:
        parameters = make_model(folder / "model", options.width)
        work = Work(
            tasks=folder / "tasks",
            model=folder / "model",
            group=8,
            groups=4,
            steps=6 if options.quick else options.steps,
            at_once=options.at_once,
            threads=options.threads,
            straggler_seconds=SLOW * (options.median or 0.0),
        )
        if options.median is None:
            with console.status("an update"):
                update = asyncio.run(measure_update(work, folder))
            work = replace(work, straggler_seconds=round(options.straggle * update, 1))
        make_tasks(work.tasks, work.straggler_seconds / SLOW)
        console.print(
            f"{parameters / 1e6:.1f} M parameters · {work.groups} × {work.group} trials a step, "
            f"{work.at_once} at once · environments: median {work.straggler_seconds / SLOW:.2f} s, "
            f"{work.straggler_seconds:g} s for one in 20 · {os.cpu_count()} cores",
            highlight=False,
        )
        found = asyncio.run(measure(names, work, folder, console))
    show(console, found)
    show_trials(console, found)
    for line in targets(found):
        console.print(line, highlight=False)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))


if __name__ == "__main__":
    main()
