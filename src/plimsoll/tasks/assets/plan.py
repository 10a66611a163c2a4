"""What a set of tasks fetches, each thing once, with the tasks that want it."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.manifest import Assets
from plimsoll.tasks.assets.mounting import clone_target, is_mountable
from plimsoll.tasks.assets.requests import Unanswerable, helpful_requests, requests_of
from plimsoll.tasks.assets.wheels import host_python
from plimsoll.tasks.lint.fetch import Fetch, Kind, Phase
from plimsoll.tasks.lint.fetches import find_fetches, task_builds
from plimsoll.tasks.task import Task

__all__ = ["Left", "Plan", "Wanted", "make_plan", "unstaged"]

PYTHON_IMAGE = re.compile(r"python:?-?(\d\.\d+)")


@dataclass(slots=True)
class Wanted:
    """A request, and the names of the tasks that make it."""

    request: Request
    tasks: dict[str, None] = field(default_factory=dict[str, None])
    shown_early: bool = True
    """Only the tests or the solution fetch it, and agents could read it before."""
    optional: bool = True
    """Tasks may do without it."""


@dataclass(slots=True)
class Left:
    """Fetches that staging does nothing for."""

    what: str
    reason: str
    tasks: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class Plan:
    """All of it. `clones` has for each path what is cloned there."""

    wanted: dict[tuple[object, ...], Wanted] = field(
        default_factory=dict[tuple[object, ...], Wanted]
    )
    left: dict[str, Left] = field(default_factory=dict[str, Left])
    clones: dict[str, set[tuple[object, ...]]] = field(
        default_factory=dict[str, set[tuple[object, ...]]]
    )
    read_only: dict[str, bool] = field(default_factory=dict[str, bool])

    def add(
        self,
        request: Request,
        task: str | None = None,
        *,
        shown_early: bool = False,
        optional: bool = False,
    ) -> None:
        wanted = self.wanted.setdefault(request.key, Wanted(request))
        wanted.shown_early &= shown_early
        wanted.optional &= optional
        if task is not None:
            wanted.tasks.setdefault(task)

    def mounts(self, request: Request) -> list[str]:
        """The paths that this request alone is cloned to, and that every task leaves alone."""
        return sorted(
            target
            for target, keys in self.clones.items()
            if keys == {request.key} and self.read_only[target]
        )


def make_plan(
    tasks: Iterable[Task], pythons: Sequence[str] = (), more: Iterable[Request] = ()
) -> Plan:
    """Collect what tasks fetch; wheels for `pythons`, or else for the Python of each image."""
    plan = Plan()
    for task in tasks:
        versions = pythons or (image_python(task),)
        for fetch in find_fetches(task):
            _add(plan, task, fetch, versions)
    _drop_spare_uv(plan)
    asked = {(wanted.request.kind, wanted.request.what) for wanted in plan.wanted.values()}
    for request in more:
        if (request.kind, request.what) not in asked:
            plan.add(request)
    return plan


def image_python(task: Task) -> str:
    """The Python of a task's image by the image's name; else that of the host's own system."""
    builds = task_builds(task)
    names = [stage.base for build in builds[:1] for stage in reversed(build.chain)]
    for name in (task.environment.docker_image or "", *names):
        if found := PYTHON_IMAGE.search(name):
            return found[1]
    return host_python()


def unstaged(task: Task, assets: Assets | None) -> tuple[str, ...]:
    """What a task fetches that could be staged and is not, in words."""
    found: dict[str, None] = {}
    for fetch in find_fetches(task):
        if assets is None or not assets.covers(fetch):
            with suppress(Unanswerable):
                found |= dict.fromkeys(request.describe() for request in requests_of(fetch))
    return tuple(found)


def _drop_spare_uv(plan: Plan) -> None:
    """Where tasks install a uv of their own choice, that one is enough for all."""
    tools = [wanted for wanted in plan.wanted.values() if wanted.request.kind is Kind.UV_TOOL]
    if not all(wanted.optional for wanted in tools):
        for wanted in tools:
            if wanted.optional:
                del plan.wanted[wanted.request.key]


def _add(plan: Plan, task: Task, fetch: Fetch, pythons: Sequence[str]) -> None:
    try:
        requests = requests_of(fetch)
    except Unanswerable as error:
        what = f"{fetch.tool} {' '.join(fetch.what)}".strip()
        left = plan.left.setdefault(f"{what}\0{error}", Left(what, str(error)))
        left.tasks.setdefault(task.name)
        return
    late = fetch.phase in (Phase.AGENT, Phase.TEST)
    for one in _for_pythons(requests, pythons):
        plan.add(one, task.name, shown_early=late)
        if (target := clone_target(fetch)) is not None:
            plan.clones.setdefault(target, set()).add(one.key)
            alone = is_mountable(task, fetch)
            plan.read_only[target] = plan.read_only.get(target, True) and alone
    for one in _for_pythons(helpful_requests(fetch), pythons):
        plan.add(one, task.name, shown_early=late, optional=True)


def _for_pythons(requests: Iterable[Request], pythons: Sequence[str]) -> Iterable[Request]:
    """Wheels are asked for once for each Python."""
    for request in requests:
        if request.kind is Kind.WHEELS:
            yield from (replace(request, python=python) for python in pythons)
        else:
            yield request
