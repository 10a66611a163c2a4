"""Helpers for tests of runs."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from plimsoll.config.file import Config
from plimsoll.runs.audit import audit
from plimsoll.runs.batches import Batch
from plimsoll.runs.files.results import Row
from plimsoll.runs.rollouts import Rollouts
from plimsoll.tasks.task import Task

__all__ = ["MakeConfig", "MakeTasks", "all_batches", "check_audit", "prompts", "rows"]

MakeTasks = Callable[..., tuple[Task, ...]]
MakeConfig = Callable[..., Config]


async def all_batches(rollouts: Rollouts) -> list[Batch]:
    batches: list[Batch] = []
    async for batch in rollouts.batches():
        batches.append(batch)
        await rollouts.commit(batch)
    return batches


def prompts(batches: list[Batch]) -> list[int]:
    return [group.prompt for batch in batches for group in batch.groups]


def rows(run: Path) -> list[Row]:
    return msgspec.json.Decoder(Row).decode_lines((run / "results.jsonl").read_bytes())


def check_audit(run: Path) -> None:
    assert audit(run).problems == []
