"""The quarantine list: tasks that a run leaves alone on a backend, each with its reason.

A line of `quarantine.txt` is a task, a backend and a reason, with tabs between them. What a
person writes into it holds as well: a task alone on a line is quarantined on every backend,
and what follows a `#` at the head of a line is a remark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import UsageError

__all__ = ["Quarantine"]

NAME = "quarantine.txt"
EVERYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The list's lines, as they are."""

    lines: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> "Quarantine":
        """The list in a folder; an empty one where there is none."""
        file = folder / NAME
        try:
            return cls(tuple(file.read_text("utf-8").splitlines()))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file}: not UTF-8 text; mend it or validate again") from error

    def reason(self, task: str, backend: str) -> str | None:
        """Why a task is quarantined on a backend; None where it is not."""
        for line in self.lines:
            name, where, reason = _fields(line)
            if name == task and where in (backend, EVERYWHERE):
                return reason or "listed by hand"
        return None

    def replaced(
        self, tasks: Sequence[str], backend: str, quarantined: Mapping[str, str]
    ) -> "Quarantine":
        """The list after `tasks` were looked at: other lines stay as they are, in their order."""
        looked_at = {(task, backend) for task in tasks}
        kept = [line for line in self.lines if _fields(line)[:2] not in looked_at]
        new = [f"{task}\t{backend}\t{_one_line(why)}" for task, why in quarantined.items()]
        return Quarantine((*kept, *new))

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def _fields(line: str) -> tuple[str, str, str]:
    if line.lstrip().startswith("#"):
        return "", "", ""
    name, _, rest = line.partition("\t")
    backend, _, reason = rest.partition("\t")
    return name.strip(), backend.strip() or EVERYWHERE, reason.strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())
