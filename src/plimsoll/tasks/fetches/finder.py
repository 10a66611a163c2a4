"""Finder of all network fetches of a task, phase by phase, for lint and staging."""

import ast
import shlex
from collections.abc import Iterator

from plimsoll.core.toml_lines import KeyPath, line_of
from plimsoll.tasks.dockerfile.stages import (
    DockerfileBuild,
    RemoteAdd,
    Stage,
    read_build,
)
from plimsoll.tasks.fetches.commands import fetch_of_command
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.fetches.scanner import FoundFetch, Scanner
from plimsoll.tasks.grader.grader import Grader
from plimsoll.tasks.grader.python_file import PythonFile, dotted
from plimsoll.tasks.shell.options import is_remote
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.task import Step, Task
from plimsoll.tasks.text_files import read_text, relative_name, texts_below

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

COMMAND_CALLS = {
    "os.system",
    "os.popen",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.Popen",
    "subprocess.getoutput",
}
HTTP_CALLS = {
    "requests.get",
    "requests.post",
    "requests.head",
    "httpx.get",
    "httpx.post",
    "urllib.request.urlopen",
    "urllib.request.urlretrieve",
    "urlopen",
    "urlretrieve",
}
HUB_CALLS = {
    "snapshot_download",
    "hf_hub_download",
    "load_dataset",
    "huggingface_hub.snapshot_download",
    "huggingface_hub.hf_hub_download",
    "datasets.load_dataset",
}


def python_fetches(source: PythonFile, phase: Phase) -> Iterator[Fetch]:
    """Yield the fetches of a file in source order."""
    if source.tree is None:
        return
    guarded = _guarded(source.tree)
    for call in sorted(source.calls, key=lambda call: (call.lineno, call.col_offset)):
        name = dotted(call.func)
        if name in COMMAND_CALLS:
            yield from _of_command(call, source, phase, call in guarded)
        elif name in HTTP_CALLS and call.args:
            url = _text(call.args[0])
            if url is not None and is_remote(url):
                yield _fetch("python", Kind.URL, url, source, phase, call, call in guarded)
        elif name in HUB_CALLS:
            first = call.args[0] if call.args else _keyword(call, "repo_id")
            repository = _text(first) if first is not None else None
            if repository is not None and not repository.startswith(("/", ".")):
                tool = "huggingface"
                yield _fetch(tool, Kind.OTHER, repository, source, phase, call, call in guarded)


def _fetch(
    tool: str,
    kind: Kind,
    what: str,
    source: PythonFile,
    phase: Phase,
    call: ast.Call,
    guarded: bool,
) -> Fetch:
    return Fetch(tool, kind, (what,), None, None, phase, source.file, call.lineno, guarded)


def _of_command(call: ast.Call, source: PythonFile, phase: Phase, guarded: bool) -> Iterator[Fetch]:
    text = _command_text(call.args[0]) if call.args else None
    if text is None:
        return
    for command in parse_script(text).commands:
        fetch = fetch_of_command(command)
        if fetch is not None:
            yield Fetch(
                tool=fetch.tool,
                kind=fetch.kind,
                what=fetch.what + tuple(f"-r {name}" for name in fetch.requirements),
                revision=fetch.revision,
                target=fetch.target,
                phase=phase,
                file=source.file,
                line=call.lineno,
                guarded=guarded,
            )


def _command_text(node: ast.expr) -> str | None:
    if isinstance(node, ast.List | ast.Tuple):
        words = [_text(item) for item in node.elts]
        # In `[sys.executable, "-m", "pip", …]` the first item is not a literal.
        if words and words[0] is None and dotted(node.elts[0]) == "sys.executable":
            words[0] = "python3"
        if not words or words[0] is None:
            return None
        return shlex.join(word if word is not None else "$UNKNOWN" for word in words)
    return _text(node)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Return all nodes inside a `try` that has a handler."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for statement in node.body
        for inner in ast.walk(statement)
    }


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
    for path, text in texts_below(folder, "*.sh"):
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
