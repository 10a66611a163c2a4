"""Lint rules about Dockerfiles and the repositories that they clone."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from plimsoll.tasks.dockerfile.stages import DockerfileBuild, Stage
from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import relative_name

__all__ = ["FUTURE_COMMITS", "INVALID_DOCKERFILE", "UNPINNED_CLONE"]

BRANCHES = {"main", "master", "develop", "dev", "trunk", "HEAD", "latest", "stable", "next"}
LOCATED = re.compile(r"^[^:]*:(\d+): (.*)", re.DOTALL)


def _check_invalid(parsed: ParsedTask) -> Iterator[Violation]:
    for build in parsed.builds:
        if build.problem is not None:
            match = LOCATED.match(build.problem)
            line = int(match[1]) if match else None
            yield Violation(build.file, line, match[2] if match else build.problem)


def _check_unpinned(parsed: ParsedTask) -> Iterator[Violation]:
    found: list[FoundFetch] = list(parsed.build_fetches)
    for graded in parsed.steps:
        found += parsed.set_up_fetches(graded.step)
        found += graded.fetches
    for one in found:
        fetch = one.fetch
        if fetch.kind is not Kind.GIT or not fetch.what or not _is_clone(one):
            continue
        revision = (fetch.revision or "").removeprefix("origin/")
        if not revision or revision in BRANCHES:
            at = f"at {revision}" if revision else "at its newest commit"
            yield Violation(fetch.file, fetch.line, f"{fetch.what[0]} is cloned {at}")


def _is_clone(found: FoundFetch) -> bool:
    return found.command is None or "clone" in found.command.args


def _future_clones(parsed: ParsedTask) -> Iterator[Violation]:
    """Yield clones into the working directory that keep commits after the checked-out one."""
    for build in parsed.builds[:1]:
        for found in parsed.build_fetches:
            fetch = found.fetch
            if fetch.file != build.file or not (fetch.revision and fetch.target and found.command):
                continue
            if _is_shallow(found) or not _is_workdir(parsed, fetch.target) or _is_pruned(build):
                continue
            message = f"{fetch.what[0] if fetch.what else 'a repository'} is checked out at "
            message += f"{fetch.revision}, and later commits stay in the image"
            yield Violation(fetch.file, fetch.line, message)


def _is_shallow(found: FoundFetch) -> bool:
    args = found.command.args if found.command is not None else ()
    depth = any(arg.startswith(("--depth", "--single-branch", "--revision")) for arg in args)
    return depth or "clone" not in args


def _is_workdir(parsed: ParsedTask, target: str) -> bool:
    workdir = parsed.image.workdir
    return workdir == target or workdir.startswith(f"{target}/") or target.startswith(f"{workdir}/")


def _is_pruned(build: DockerfileBuild) -> bool:
    """Whether a command removes or prunes the history."""
    return any(_stage_prunes(stage) for stage in build.stages)


def _stage_prunes(stage: Stage) -> bool:
    for run in stage.runs:
        for command in run.script.commands:
            plain = command.unwrapped()
            text = " ".join(plain.args)
            if plain.name == "rm" and ".git" in text:
                return True
            if plain.name == "git" and re.search(r"\b(?:gc|prune|reflog expire|init)\b", text):
                return True
    return False


INVALID_DOCKERFILE = Rule(
    id="invalid-dockerfile",
    severity=Severity.ERROR,
    why="The image cannot be built, so no trial can start.",
    fix="Fix the line; Docker rejects it too.",
    check=_check_invalid,
)
UNPINNED_CLONE = Rule(
    id="unpinned-clone",
    severity=Severity.WARNING,
    why="The task changes with the repository, so rewards of two runs are not comparable.",
    fix="Check out a commit after the clone, or clone a tag with --branch.",
    check=_check_unpinned,
)


GIT_TIMEOUT = 20.0
MAX_FOLDERS = 2000


def _check_future(parsed: ParsedTask) -> Iterator[Violation]:
    for folder in _repositories(parsed.task.environment_dir):
        later = _later_commits(folder)
        if later:
            commits = "1 commit" if later == 1 else f"{later:,} commits"
            message = f"the repository has {commits} that are not reachable from HEAD"
            yield Violation(relative_name(folder, parsed.task.path), None, message)
    yield from _future_clones(parsed)


def _repositories(root: Path) -> Iterator[Path]:
    """Yield `.git` folders and bare repositories."""
    for count, (folder, folders, files) in enumerate(os.walk(root)):
        if count > MAX_FOLDERS:
            return
        here = Path(folder)
        if "HEAD" in files and "objects" in folders and "refs" in folders:
            folders.clear()
            yield here


def _later_commits(git_folder: Path) -> int:
    """Count the commits, on any branch or none, that are not ancestors of HEAD."""
    reachable = _git(git_folder, "rev-list", "HEAD")
    every = _git(
        git_folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"
    )
    if reachable is None or every is None:
        return 0
    ancestors = set(reachable)
    commits = [line.split()[1] for line in every if line.startswith("commit ")]
    return sum(commit not in ancestors for commit in commits)


def _git(git_folder: Path, *args: str) -> Sequence[str] | None:
    git = shutil.which("git")
    if git is None:
        return None
    # The repository is untrusted: ignore its owner, and let its configuration run nothing.
    options = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "--git-dir", str(git_folder))
    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [git, *options, *args], capture_output=True, timeout=GIT_TIMEOUT, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("ascii", "replace").splitlines() if done.returncode == 0 else None


FUTURE_COMMITS = Rule(
    id="future-commits",
    severity=Severity.WARNING,
    why="The agent can read the solution from the history (`git log --all`).",
    fix=(
        "Keep only the history up to the base commit: clone with --depth 1 at that commit, or "
        "delete other refs, expire the reflog and run `git gc --prune=now`."
    ),
    check=_check_future,
)
