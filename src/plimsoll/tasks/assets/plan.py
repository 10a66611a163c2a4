"""Which clones can be answered by a checkout mounted where they go.

A mount is read-only, so only a folder that the build leaves as it was cloned qualifies. All
others are cloned from the mirror, and can be written as ever.

What a set of tasks fetches, each thing once, with the tasks that want it.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.packages import host_python
from plimsoll.tasks.assets.requests import UnsupportedFetch, optional_requests, requests_of
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.dockerfile.stages import RunScript, Stage
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.fetches.finder import find_fetches, task_builds
from plimsoll.tasks.task import Task

__all__ = [
    "Plan",
    "PlannedRequest",
    "UnstagedFetch",
    "clone_target",
    "is_mountable",
    "make_plan",
    "unstaged_requests",
]

READERS = {
    "", "[", "[[", "apt", "apt-get", "cat", "cd", "echo", "export", "git", "ls", "mkdir", "printf",
    "set", "test", "true",
}  # fmt: skip
"""Commands that leave a cloned folder as it is."""


def clone_target(fetch: Fetch) -> str | None:
    """The absolute path that a clone goes to, where it is known."""
    target = (fetch.target or "").rstrip("/")
    known = target.startswith("/") and not any(sign in target for sign in "$*`~")
    return target if fetch.kind is Kind.GIT and known else None


def is_mountable(task: Task, fetch: Fetch) -> bool:
    """Whether the task leaves the folder alone after it has cloned it."""
    target = clone_target(fetch)
    if target is None or fetch.phase not in (Phase.BUILD, Phase.SET_UP):
        return False
    # A folder right below the root is as a rule what the agent works in.
    if len(PurePosixPath(target).parts) < 3 or _near(target, task.environment.workdir or ""):
        return False
    stages = [stage for build in task_builds(task) for stage in build.stages]
    return all(_leaves_alone(stage, fetch, target) for stage in stages)


def _leaves_alone(stage: Stage, fetch: Fetch, target: str) -> bool:
    if _near(target, stage.workdir) or any(_near(target, copy.target) for copy in stage.copies):
        return False
    return all(
        command.unwrapped().name in READERS
        for run in stage.runs
        if _touches(run, fetch, target)
        for command in run.script.commands
    )


def _touches(run: RunScript, fetch: Fetch, target: str) -> bool:
    words = [word for command in run.script.commands for word in command.args]
    names = (target, *fetch.what)
    return _within(run.cwd, target) or any(name in word for name in names for word in words)


def _near(target: str, path: str) -> bool:
    """One of them is the other, or lies in it; the root and its folders' own names aside."""
    path = path.rstrip("/")
    return _within(path, target) or (path.count("/") > 1 and _within(target, path))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


PYTHON_IMAGE = re.compile(r"python:?-?(\d\.\d+)")


@dataclass(slots=True)
class PlannedRequest:
    """A request, and the names of the tasks that make it."""

    request: Request
    tasks: dict[str, None] = field(default_factory=dict[str, None])
    shown_early: bool = True
    """Only the tests or the solution fetch it, and agents could read it before."""
    optional: bool = True
    """Tasks may do without it."""


@dataclass(slots=True)
class UnstagedFetch:
    """Fetches that staging does nothing for."""

    what: str
    reason: str
    tasks: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class Plan:
    """All of it. `clones` has for each path what is cloned there."""

    wanted: dict[tuple[object, ...], PlannedRequest] = field(
        default_factory=dict[tuple[object, ...], PlannedRequest]
    )
    left: dict[str, UnstagedFetch] = field(default_factory=dict[str, UnstagedFetch])
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
        wanted = self.wanted.setdefault(request.key, PlannedRequest(request))
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


def unstaged_requests(task: Task, assets: StagedAssets | None) -> tuple[str, ...]:
    """What a task fetches that could be staged and is not, in words."""
    found: dict[str, None] = {}
    for fetch in find_fetches(task):
        if assets is None or not assets.covers(fetch):
            with suppress(UnsupportedFetch):
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
    except UnsupportedFetch as error:
        what = f"{fetch.tool} {' '.join(fetch.what)}".strip()
        left = plan.left.setdefault(f"{what}\0{error}", UnstagedFetch(what, str(error)))
        left.tasks.setdefault(task.name)
        return
    late = fetch.phase in (Phase.AGENT, Phase.TEST)
    for one in _for_pythons(requests, pythons):
        plan.add(one, task.name, shown_early=late)
        if (target := clone_target(fetch)) is not None:
            plan.clones.setdefault(target, set()).add(one.key)
            alone = is_mountable(task, fetch)
            plan.read_only[target] = plan.read_only.get(target, True) and alone
    for one in _for_pythons(optional_requests(fetch), pythons):
        plan.add(one, task.name, shown_early=late, optional=True)


def _for_pythons(requests: Iterable[Request], pythons: Sequence[str]) -> Iterable[Request]:
    """Wheels are asked for once for each Python."""
    for request in requests:
        if request.kind is Kind.WHEELS:
            yield from (replace(request, python=python) for python in pythons)
        else:
            yield request
