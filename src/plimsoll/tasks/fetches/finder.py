"""Finder of all network fetches of a task, phase by phase, for lint and staging."""

from plimsoll.core.toml_lines import KeyPath, line_of
from plimsoll.tasks.dockerfile.stages import (
    DockerfileBuild,
    RemoteAdd,
    Stage,
    read_build,
)
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.fetches.python_calls import python_fetches
from plimsoll.tasks.fetches.scanner import FoundFetch, Scanner
from plimsoll.tasks.grader.grader import Grader
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.task import Step, Task
from plimsoll.tasks.text_files import files_below, read_text, relative_name

__all__ = [
    "agent_fetches",
    "build_fetches",
    "find_fetches",
    "grader_fetches",
    "hook_fetches",
    "set_up_fetches",
    "stage_fetches",
    "task_builds",
]


def find_fetches(task: Task) -> tuple[Fetch, ...]:
    """Return all fetches of a task: build, set-up, solution, tests and hooks, in that order."""
    builds = task_builds(task)
    found = [entry.fetch for build in builds for entry in build_fetches(build)]
    cwd = builds[0].stages[-1].workdir if builds and builds[0].stages else "/"
    for step in task.steps:
        found += [entry.fetch for entry in set_up_fetches(task, step, cwd)]
        found += [entry.fetch for entry in agent_fetches(step, cwd)]
        found += [entry.fetch for entry in grader_fetches(Grader(step), cwd)]
        found += [entry.fetch for entry in hook_fetches(task, step)]
    return tuple(dict.fromkeys(found))


def task_builds(task: Task) -> tuple[DockerfileBuild, ...]:
    """Return the builds of a task: its environment, then separate verifiers."""
    builds: list[DockerfileBuild] = []
    if task.dockerfile is not None and task.environment.docker_image is None:
        file = relative_name(task.dockerfile, task.path)
        builds.append(read_build(task.dockerfile, task.environment_dir, file))
    own = [s.verifier_dockerfile for s in task.steps if s.separate_verifier]
    for path in dict.fromkeys(path for path in own if path is not None):
        builds.append(read_build(path, path.parent, relative_name(path, task.path)))
    return tuple(builds)


def build_fetches(build: DockerfileBuild) -> tuple[FoundFetch, ...]:
    """Return the fetches of RUN and ADD in a Dockerfile; excludes the base image."""
    return tuple(found for stage in build.stages for found in stage_fetches(build, stage))


def stage_fetches(build: DockerfileBuild, stage: Stage) -> tuple[FoundFetch, ...]:
    """Return the fetches of one build stage."""
    scanner = Scanner(Phase.BUILD, (build.context,))
    for run in stage.runs:
        scanner.cwd = run.cwd
        scanner.env = dict(run.env)
        scanner.scan(run.script, build.file)
    for added in stage.additions:
        scanner.add(_addition(added, build.file))
    return tuple(scanner.found)


def _addition(added: RemoteAdd, file: str) -> Fetch:
    url, _, revision = added.url.partition("#")
    is_git = url.endswith(".git") or url.startswith("git")
    return Fetch(
        tool="git" if is_git else "curl",
        kind=Kind.GIT if is_git else Kind.URL,
        what=(url,),
        revision=revision or None,
        target=added.target,
        phase=Phase.BUILD,
        file=file,
        line=added.line,
        guarded=False,
    )


def set_up_fetches(task: Task, step: Step, cwd: str) -> tuple[FoundFetch, ...]:
    """Return the fetches of a step's `setup.sh` and of the health checks."""
    scanner = Scanner(Phase.SET_UP, (step.workdir,) if step.workdir else (), cwd)
    if step.workdir is not None:
        path = step.workdir / "setup.sh"
        text = read_text(path)
        if text is not None:
            scanner.scan(parse_script(text), relative_name(path, task.path))
    if task.environment.healthcheck is not None:
        command = task.environment.healthcheck.command
        _scan_key(scanner, task, ("environment", "healthcheck", "command"), command)
    if step.healthcheck is not None:
        _scan_key(scanner, task, (*_step_key(task, step), "healthcheck"), step.healthcheck.command)
    return tuple(scanner.found)


def agent_fetches(step: Step, cwd: str) -> tuple[FoundFetch, ...]:
    """Return the fetches of the reference solution; those of other agents are unknown."""
    folder = step.solution_dir
    if folder is None:
        return ()
    scanner = Scanner(Phase.AGENT, (folder,), cwd)
    for path in files_below(folder, "*.sh"):
        text = read_text(path)
        if text is not None:
            scanner.cwd = cwd
            scanner.scan(parse_script(text), relative_name(path, step.task_folder))
    return tuple(scanner.found)


def grader_fetches(grader: Grader, cwd: str) -> tuple[FoundFetch, ...]:
    """Return the fetches of `test.sh`, of the scripts that it calls and of Python files."""
    scanner = Scanner(Phase.TEST, grader.step.tests_dirs, cwd)
    for source in grader.scripts.values():
        scanner.cwd = cwd
        scanner.scan(source.script, source.file)
    for source in grader.pythons.values():
        for fetch in python_fetches(source, Phase.TEST):
            scanner.add(fetch)
    return tuple(scanner.found)


def hook_fetches(task: Task, step: Step) -> tuple[FoundFetch, ...]:
    """Return the fetches of the `verifier.collect` commands."""
    scanner = Scanner(Phase.TEST, ())
    for index, hook in enumerate(step.verifier.collect):
        key = (*_collect_key(task, step), "verifier", "collect", index)
        _scan_key(scanner, task, key, hook.command)
    return tuple(scanner.found)


def _step_key(task: Task, step: Step) -> KeyPath:
    return ("steps", task.steps.index(step)) if task.is_multi_step else ()


def _collect_key(task: Task, step: Step) -> KeyPath:
    """Return the table that defines the hooks: the step's, or else the task's."""
    key = _step_key(task, step)
    return key if key and task.config.steps[task.steps.index(step)].verifier.collect else ()


def _scan_key(scanner: Scanner, task: Task, key: KeyPath, command: str) -> None:
    text = read_text(task.file) or ""
    scanner.scan(parse_script(command), "task.toml", line_of(text, key) or 1)
