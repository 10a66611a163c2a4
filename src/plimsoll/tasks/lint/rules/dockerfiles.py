"""What a Dockerfile does to repositories, and whether it can be read at all."""

import re
from collections.abc import Iterator

from plimsoll.tasks.dockerfile.stages import DockerfileBuild, Stage
from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation

__all__ = ["INVALID", "UNPINNED", "built_future"]

BRANCHES = {"main", "master", "develop", "dev", "trunk", "HEAD", "latest", "stable", "next"}
LINE = re.compile(r"^[^:]*:(\d+): (.*)", re.DOTALL)


def _check_invalid(subject: ParsedTask) -> Iterator[Violation]:
    for build in subject.builds:
        if build.problem is not None:
            match = LINE.match(build.problem)
            line = int(match[1]) if match else None
            yield Violation(build.file, line, match[2] if match else build.problem)


def _check_unpinned(subject: ParsedTask) -> Iterator[Violation]:
    found: list[FoundFetch] = list(subject.build_fetches)
    for graded in subject.steps:
        found += subject.set_up_fetches(graded.step)
        found += graded.fetches
    for one in found:
        fetch = one.fetch
        if fetch.kind is not Kind.GIT or not fetch.what or not _is_clone(one):
            continue
        revision = (fetch.revision or "").removeprefix("origin/")
        if not revision or revision in BRANCHES:
            at = f"at {revision}" if revision else "at whatever is newest"
            yield Violation(fetch.file, fetch.line, f"{fetch.what[0]} is cloned {at}")


def _is_clone(found: FoundFetch) -> bool:
    return found.command is None or "clone" in found.command.args


def built_future(subject: ParsedTask) -> Iterator[Violation]:
    """Clones into the work's folder that are set back to an older commit, later ones kept."""
    for build in subject.builds[:1]:
        for found in subject.build_fetches:
            fetch = found.fetch
            if fetch.file != build.file or not (fetch.revision and fetch.target and found.command):
                continue
            if _shallow(found) or not _is_work(subject, fetch.target) or _cleaned(build):
                continue
            message = f"{fetch.what[0] if fetch.what else 'a repository'} is set back to "
            message += f"{fetch.revision}, and its later commits stay in the image"
            yield Violation(fetch.file, fetch.line, message)


def _shallow(found: FoundFetch) -> bool:
    args = found.command.args if found.command is not None else ()
    depth = any(arg.startswith(("--depth", "--single-branch", "--revision")) for arg in args)
    return depth or "clone" not in args


def _is_work(subject: ParsedTask, target: str) -> bool:
    workdir = subject.image.workdir
    return workdir == target or workdir.startswith(f"{target}/") or target.startswith(f"{workdir}/")


def _cleaned(build: DockerfileBuild) -> bool:
    """Some later command takes the history away or prunes it."""
    return any(_prunes(stage) for stage in build.stages)


def _prunes(stage: Stage) -> bool:
    for run in stage.runs:
        for command in run.script.commands:
            plain = command.unwrapped()
            text = " ".join(plain.args)
            if plain.name == "rm" and ".git" in text:
                return True
            if plain.name == "git" and re.search(r"\b(?:gc|prune|reflog expire|init)\b", text):
                return True
    return False


INVALID = Rule(
    id="invalid-dockerfile",
    severity=Severity.ERROR,
    why="The image cannot be built, so no trial can start.",
    fix="Mend the line; Docker refuses it too.",
    check=_check_invalid,
)
UNPINNED = Rule(
    id="unpinned-clone",
    severity=Severity.WARNING,
    why="The task changes when the repository does: rewards of two runs are not comparable.",
    fix="Check out a commit after the clone, or clone a tag with --branch.",
    check=_check_unpinned,
)
