"""From what a person asks for to an evaluation that is ready to run, and its end."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from plimsoll.agents.protocol import Agent
from plimsoll.agents.registry import make_agent
from plimsoll.runs.backends import make_backend
from plimsoll.runs.config import load_config
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.evaluation import Evaluation, Ticket
from plimsoll.runs.results import Summary
from plimsoll.runs.selection import Selection, select_tasks
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trials.trial import TrialResult, run_trial

__all__ = ["EvalRun", "Request", "default_concurrency", "exit_code"]


def default_concurrency() -> int:
    """As many trials as there are cores to use, and never fewer than two.

    A trial waits for its sandbox now and then, and a second one uses that time.
    """
    return max(2, len(os.sched_getaffinity(0)))


def exit_code(summary: Summary) -> int:
    """0 where every trial is graded, 3 where any is void."""
    return 3 if summary.void else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `plimsoll eval` was asked for."""

    path: Path
    agent: str
    backend: str
    attempts: int
    concurrency: int
    pattern: str | None
    out: Path | None
    config: Path | None
    skip_invalid: bool


@dataclass(frozen=True, slots=True)
class EvalRun:
    """An evaluation with everything that it needs."""

    request: Request
    agent: Agent
    backend: Backend
    selection: Selection
    directory: RunDirectory
    evaluation: Evaluation

    @classmethod
    def prepare(cls, request: Request) -> "EvalRun":
        """Check all that can be checked before anything is started."""
        agent = make_agent(request.agent)
        backend = make_backend(request.backend, load_config(request.config))
        selection = select_tasks(
            request.path, pattern=request.pattern, skip_invalid=request.skip_invalid
        )
        directory = RunDirectory.create(request.out, now=datetime.now())

        async def trial(ticket: Ticket, on_phase: Callable[[str], None]) -> TrialResult:
            return await run_trial(
                ticket.task,
                attempt=ticket.attempt,
                agent=agent,
                backend=backend,
                run=directory.name,
                directory=directory.trial(ticket.task.name, ticket.attempt),
                on_phase=on_phase,
            )

        evaluation = Evaluation(
            selection.tasks,
            attempts=request.attempts,
            concurrency=request.concurrency,
            trial=trial,
            directory=directory,
        )
        return cls(request, agent, backend, selection, directory, evaluation)

    async def run(self) -> None:
        async with self.backend:
            await self.evaluation.run()

    def finish(self) -> Summary:
        """Write the summary of what has finished, all of it or a part."""
        summary = self.evaluation.summary
        self.directory.finish(summary)
        return summary
