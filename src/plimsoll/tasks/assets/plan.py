"""Staging plan: the deduplicated requests of a set of tasks, and the mounts of checkouts.

A clone can be replaced by a checkout that is mounted at its destination. The mount is
read-only, so this applies only to folders that the task does not change after the clone. All
other clones use the mirror and stay writable.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from plimsoll.tasks.assets.asset import Request, UnsupportedFetch, optional_requests, requests_of
from plimsoll.tasks.assets.packages import host_python
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
    "make_plan",
    "unstaged_requests",
]

READ_ONLY_COMMANDS = {
    "", "[", "[[", "apt", "apt-get", "cat", "cd", "echo", "export", "git", "ls", "mkdir", "printf",
    "set", "test", "true",
}  # fmt: skip
"""Commands that do not change a cloned folder."""


def clone_target(fetch: Fetch) -> str | None:
    """Return the absolute destination of a clone; None if unknown."""
    target = (fetch.target or "").rstrip("/")
    absolute = target.startswith("/") and not any(sign in target for sign in "$*`~")
    return target if fetch.kind is Kind.GIT and absolute else None


def is_mountable(task: Task, fetch: Fetch) -> bool:
    """Whether the task does not change the folder after the clone."""
    target = clone_target(fetch)
    if target is None or fetch.phase not in (Phase.BUILD, Phase.SET_UP):
        return False
    # A folder directly below the root is usually the working directory of the agent.
    if len(PurePosixPath(target).parts) < 3 or _overlaps(target, task.environment.workdir or ""):
        return False
    stages = [stage for build in task_builds(task) for stage in build.stages]
    return all(_keeps_unchanged(stage, fetch, target) for stage in stages)


def _keeps_unchanged(stage: Stage, fetch: Fetch, target: str) -> bool:
    if _overlaps(target, stage.workdir) or any(
        _overlaps(target, copy.target) for copy in stage.copies
    ):
        return False
    return all(
        command.unwrapped().name in READ_ONLY_COMMANDS
        for run in stage.runs
        if _touches(run, fetch, target)
        for command in run.script.commands
    )


def _touches(run: RunScript, fetch: Fetch, target: str) -> bool:
    words = [word for command in run.script.commands for word in command.args]
    names = (target, *fetch.what)
    return _within(run.cwd, target) or any(name in word for name in names for word in words)


def _overlaps(target: str, path: str) -> bool:
    """Whether one path contains the other, except for the root and top-level folders."""
    path = path.rstrip("/")
    return _within(path, target) or (path.count("/") > 1 and _within(target, path))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


PYTHON_IMAGE = re.compile(r"python:?-?(\d\.\d+)")


@dataclass(slots=True)
class PlannedRequest:
    """A request and the names of its tasks."""

    request: Request
    tasks: dict[str, None] = field(default_factory=dict[str, None])
    exposed_early: bool = True
    """Only the tests or the solution fetch it; once staged, agents can read it earlier."""
    optional: bool = True
    """Tasks may work without it."""


@dataclass(slots=True)
class UnstagedFetch:
    """A fetch that cannot be staged."""

    what: str
    reason: str
    tasks: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class Plan:
    """Requests to stage, fetches that cannot be staged, and the requests cloned to each path."""

    requests: dict[tuple[object, ...], PlannedRequest] = field(
        default_factory=dict[tuple[object, ...], PlannedRequest]
    )
    unstaged: dict[str, UnstagedFetch] = field(default_factory=dict[str, UnstagedFetch])
    clones: dict[str, set[tuple[object, ...]]] = field(
        default_factory=dict[str, set[tuple[object, ...]]]
    )
    read_only: dict[str, bool] = field(default_factory=dict[str, bool])

    def add(
        self,
        request: Request,
        task: str | None = None,
        *,
        exposed_early: bool = False,
        optional: bool = False,
    ) -> None:
        planned = self.requests.setdefault(request.key, PlannedRequest(request))
        planned.exposed_early &= exposed_early
        planned.optional &= optional
        if task is not None:
            planned.tasks.setdefault(task)

    def mounts(self, request: Request) -> list[str]:
        """Return the paths that only this request is cloned to and that no task changes."""
        return sorted(
            target
            for target, keys in self.clones.items()
            if keys == {request.key} and self.read_only[target]
        )


def make_plan(
    tasks: Iterable[Task], pythons: Sequence[str] = (), more: Iterable[Request] = ()
) -> Plan:
    """Collect the requests of tasks; wheels are for `pythons`, or for the Python of each image."""
    plan = Plan()
    for task in tasks:
        versions = pythons or (image_python(task),)
        for fetch in find_fetches(task):
            _add(plan, task, fetch, versions)
    _drop_spare_uv(plan)
    existing = {(planned.request.kind, planned.request.what) for planned in plan.requests.values()}
    for request in more:
        if (request.kind, request.what) not in existing:
            plan.add(request)
    return plan


def image_python(task: Task) -> str:
    """Return the Python version in a task's image name; else that of the host system."""
    builds = task_builds(task)
    names = [stage.base for build in builds[:1] for stage in reversed(build.chain)]
    for name in (task.environment.docker_image or "", *names):
        if found := PYTHON_IMAGE.search(name):
            return found[1]
    return host_python()


def unstaged_requests(task: Task, assets: StagedAssets | None) -> tuple[str, ...]:
    """Describe the fetches of a task that could be staged and are not."""
    found: dict[str, None] = {}
    for fetch in find_fetches(task):
        if assets is None or not assets.covers(fetch):
            with suppress(UnsupportedFetch):
                found |= dict.fromkeys(request.describe() for request in requests_of(fetch))
    return tuple(found)


def _drop_spare_uv(plan: Plan) -> None:
    """Drop optional uv requests if tasks install a uv themselves."""
    tools = [planned for planned in plan.requests.values() if planned.request.kind is Kind.UV_TOOL]
    if not all(planned.optional for planned in tools):
        for planned in tools:
            if planned.optional:
                del plan.requests[planned.request.key]


def _add(plan: Plan, task: Task, fetch: Fetch, pythons: Sequence[str]) -> None:
    try:
        requests = requests_of(fetch)
    except UnsupportedFetch as error:
        what = f"{fetch.tool} {' '.join(fetch.what)}".strip()
        unstaged = plan.unstaged.setdefault(f"{what}\0{error}", UnstagedFetch(what, str(error)))
        unstaged.tasks.setdefault(task.name)
        return
    late = fetch.phase in (Phase.AGENT, Phase.TEST)
    for one in _for_pythons(requests, pythons):
        plan.add(one, task.name, exposed_early=late)
        if (target := clone_target(fetch)) is not None:
            plan.clones.setdefault(target, set()).add(one.key)
            alone = is_mountable(task, fetch)
            plan.read_only[target] = plan.read_only.get(target, True) and alone
    for one in _for_pythons(optional_requests(fetch), pythons):
        plan.add(one, task.name, exposed_early=late, optional=True)


def _for_pythons(requests: Iterable[Request], pythons: Sequence[str]) -> Iterable[Request]:
    """Yield requests for wheels once for each Python version."""
    for request in requests:
        if request.kind is Kind.WHEELS:
            yield from (replace(request, python=python) for python in pythons)
        else:
            yield request
