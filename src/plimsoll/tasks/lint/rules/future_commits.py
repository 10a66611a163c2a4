"""A repository that holds commits beyond the one that the agent starts from."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.rules.dockerfiles import built_future
from plimsoll.tasks.text_files import relative_name

__all__ = ["RULE"]

SECONDS = 20.0
MAX_FOLDERS = 2000


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for folder in _repositories(subject.task.environment_dir):
        later = _later_commits(folder)
        if later:
            commits = "1 commit" if later == 1 else f"{later:,} commits"
            message = f"the repository holds {commits} that HEAD does not lead to"
            yield Violation(relative_name(folder, subject.task.path), None, message)
    yield from built_future(subject)


def _repositories(root: Path) -> Iterator[Path]:
    """`.git` folders, and folders that are a repository without a work tree."""
    for count, (folder, folders, files) in enumerate(os.walk(root)):
        if count > MAX_FOLDERS:
            return
        here = Path(folder)
        if "HEAD" in files and "objects" in folders and "refs" in folders:
            folders.clear()
            yield here


def _later_commits(git_folder: Path) -> int:
    """Commits in its objects, named by a branch or not, that are no ancestors of HEAD."""
    reachable = _git(git_folder, "rev-list", "HEAD")
    every = _git(
        git_folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"
    )
    if reachable is None or every is None:
        return 0
    known = set(reachable)
    commits = [line.split()[1] for line in every if line.startswith("commit ")]
    return sum(commit not in known for commit in commits)


def _git(git_folder: Path, *args: str) -> Sequence[str] | None:
    git = shutil.which("git")
    if git is None:
        return None
    # The repository is a stranger's: its owner is not asked for, its settings run nothing here.
    options = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "--git-dir", str(git_folder))
    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run([git, *options, *args], capture_output=True, timeout=SECONDS, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("ascii", "replace").splitlines() if done.returncode == 0 else None


RULE = Rule(
    id="future-commits",
    severity=Severity.WARNING,
    why="The agent can read the answer from the history (`git log --all`) instead of finding it.",
    fix=(
        "Keep the history up to the base commit alone: clone with --depth 1 at that commit, or "
        "delete other refs, expire the reflog and run `git gc --prune=now`."
    ),
    check=_check,
)
