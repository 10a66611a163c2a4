"""Scanner of scripts for fetches, with their destinations and revisions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.tasks.fetches.commands import CommandFetch, fetch_of_command
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.shell.options import (
    expand,
    is_remote,
    join_path,
    split_options,
)
from plimsoll.tasks.shell.syntax import Command, Script
from plimsoll.tasks.text_files import requirements_in

__all__ = ["FoundFetch", "Scanner", "script_env"]

NOT_A_REVISION = ("FETCH_HEAD", "HEAD", ".", "--")


@dataclass(frozen=True, slots=True)
class FoundFetch:
    """A fetch with its command; `command` is None for a call in a Python file."""

    fetch: Fetch
    command: Command | None


class Scanner:
    """Scans scripts of one phase. Keeps the working directory, variables and git remotes."""

    def __init__(self, phase: Phase, folders: Sequence[Path], cwd: str = "/") -> None:
        self.phase = phase
        self.folders = folders
        """Folders to search for requirements files."""
        self.cwd = cwd
        self.env: dict[str, str] = {}
        self.found: list[FoundFetch] = []
        self.remotes: dict[tuple[str, str], str] = {}
        """URLs by folder and remote name."""

    def scan(self, script: Script, file: str, line: int | None = None) -> None:
        """Add the fetches of a script. `line`, if given, replaces the lines of the script."""
        self.env |= script_env(script)
        for command in script.commands:
            plain = self._expanded(command.unwrapped())
            if plain.name == "cd":
                self._change_folder(plain)
            elif plain.name == "git":
                self._track_git(plain)
            command_fetch = fetch_of_command(plain)
            if command_fetch is not None:
                fetch = self._fetch(command_fetch, plain, file, line or command.line)
                if fetch is not None:
                    self.found.append(FoundFetch(fetch, command))

    def add(self, fetch: Fetch) -> None:
        self.found.append(FoundFetch(fetch, None))

    def _expanded(self, plain: Command) -> Command:
        return replace(plain, args=tuple(expand(arg, self.env) for arg in plain.args))

    def _change_folder(self, plain: Command) -> None:
        operands = [arg for arg in plain.args if not arg.startswith("-")]
        if operands and "$" not in operands[0]:
            self.cwd = join_path(self.cwd, operands[0])

    def _fetch(
        self, command_fetch: CommandFetch, plain: Command, file: str, line: int
    ) -> Fetch | None:
        what = command_fetch.what
        if (
            command_fetch.tool == "git"
            and command_fetch.kind is Kind.GIT
            and what
            and not is_remote(what[0])
        ):
            url = self._remote(what[0], command_fetch.target)
            if url is None and any(folder == self.cwd for folder, _ in self.remotes):
                return None
            what = (url,) if url else ()
        target = command_fetch.target
        if command_fetch.kind is Kind.GIT:
            target = join_path(self.cwd, target or "")
        elif target is not None:
            target = join_path(self.cwd, target)
        for name in command_fetch.requirements:
            more = requirements_in(name, self.folders)
            what += more if more is not None else (f"-r {name}",)
        if command_fetch.kind is Kind.GIT and what and target:
            self.remotes[target, "origin"] = what[0]
        return Fetch(
            tool=command_fetch.tool,
            kind=command_fetch.kind,
            what=what,
            revision=command_fetch.revision,
            target=target,
            phase=self.phase,
            file=file,
            line=line,
            guarded=plain.guarded,
        )

    # Git: remotes by name, and checkouts that pin an earlier clone.

    def _track_git(self, plain: Command) -> None:
        outer = split_options(plain.args, ("-C", "-c", "--git-dir", "--work-tree"), stop=True)
        folder = join_path(self.cwd, outer.value("-C") or "")
        match outer.operands:
            case ("remote", "add", *rest):
                words = split_options(rest, ("-t", "-m"))
                if len(words.operands) == 2:
                    self.remotes[folder, words.operands[0]] = words.operands[1]
            case (("checkout" | "reset" | "switch") as action, *rest):
                self._pin(folder, action, rest)
            case _:
                pass

    def _pin(self, folder: str, action: str, rest: Sequence[str]) -> None:
        words = split_options(rest, ())
        if not words.operands or words.operands[0] in NOT_A_REVISION or words.has("-b", "-B", "-c"):
            return
        if "--" in rest and list(rest).index("--") == 0:
            return
        if action == "reset" and not words.has("--hard", "--soft", "--mixed"):
            return
        at = self._last_clone(folder)
        if at is not None:
            fetch = replace(self.found[at].fetch, revision=words.operands[0])
            self.found[at] = replace(self.found[at], fetch=fetch)

    def _last_clone(self, folder: str) -> int | None:
        """Return the latest clone into the folder; if the folder is unknown, the latest clone."""
        clones = [
            at
            for at, found in enumerate(self.found)
            if found.fetch.tool == "git" and found.fetch.kind is Kind.GIT
        ]
        here = [at for at in clones if _within(folder, self.found[at].fetch.target)]
        if here:
            return here[-1]
        return clones[-1] if clones and "$" in folder else None

    def _remote(self, name: str, folder: str | None) -> str | None:
        return self.remotes.get((join_path(self.cwd, folder or ""), name))


def _within(folder: str, target: str | None) -> bool:
    return target is not None and (folder == target or folder.startswith(f"{target}/"))


def script_env(script: Script) -> dict[str, str]:
    """Return the variables that a script sets to exactly one known text."""
    seen: dict[str, list[str]] = {}
    for assignment in script.assignments:
        seen.setdefault(assignment.name, []).append(assignment.value)
    return {
        name: values[0]
        for name, values in seen.items()
        if len(set(values)) == 1 and not re.search(r"\$[(?#@*!]|`", values[0])
    } | {"PWD": "."}
