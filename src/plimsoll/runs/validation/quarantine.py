"""The quarantine list: tasks that runs on a backend leave out, each with its reason.

A line of `quarantine.txt` is a task, a backend and a reason, separated by tabs. Users may edit
it: a task alone on a line is quarantined on every backend, and a line that starts with `#` is a
comment.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import UsageError

__all__ = ["Quarantine"]

NAME = "quarantine.txt"
EVERYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The lines of the list, unchanged."""

    lines: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> "Quarantine":
        """The list in a folder; empty if there is no file."""
        file = folder / NAME
        try:
            return cls(tuple(file.read_text("utf-8-sig").splitlines()))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file}: not UTF-8 text; fix it or validate again") from error

    def check(self, folder: Path, root: Path) -> None:
        """Refuse a line without tabs that names no task: it may contain a backend or a reason."""
        for number, line in enumerate(self.lines, start=1):
            name = _fields(line)[0]
            if name and "\t" not in line and not (root / name).exists():
                raise UsageError(
                    f"{folder / NAME}:{number}: there is no task {name}; a line is a task's folder "
                    "alone, or with tabs between it, a backend and a reason"
                )

    def reason(self, task: str, backend: str) -> str | None:
        """The reason for a task's quarantine on a backend; None if it is not quarantined."""
        for line in self.lines:
            name, where, reason = _fields(line)
            if name == task and where in (backend, EVERYWHERE):
                return reason or "listed by hand"
        return None

    def by_hand(self, task: str, backend: str, recorded: str | None) -> str | None:
        """The reason of a user's quarantine. A line with the recorded reason is from `validate`."""
        own = None if recorded is None else f"{task}\t{backend}\t{_one_line(recorded)}"
        others = Quarantine(tuple(line for line in self.lines if line != own))
        return others.reason(task, backend)

    def replaced(
        self, tasks: Sequence[str], backend: str, quarantined: Mapping[str, str]
    ) -> "Quarantine":
        """The list after `tasks` were validated. Other lines keep their content and order."""
        looked_at = {(task, backend) for task in tasks}
        unchanged = [line for line in self.lines if _fields(line)[:2] not in looked_at]
        new = [f"{task}\t{backend}\t{_one_line(why)}" for task, why in quarantined.items()]
        return Quarantine((*unchanged, *new))

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def _fields(line: str) -> tuple[str, str, str]:
    if line.lstrip().startswith("#"):
        return "", "", ""
    name, _, rest = line.partition("\t")
    backend, _, reason = rest.partition("\t")
    folder = posixpath.normpath(name.strip()) if name.strip() else ""
    return folder, backend.strip() or EVERYWHERE, reason.strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())
