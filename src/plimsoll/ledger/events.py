"""Events: everything that can happen to a rollout, each as one row of the journal.

The id of an event is derived from its subject, so that writing it a second time changes
nothing: a completion delivered twice, or after a restart, is the same event.
"""

from typing import Literal

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.core.versions import Version
from plimsoll.ledger.books.group import Group
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause

__all__ = [
    "Admitted",
    "Committed",
    "Configured",
    "Consumed",
    "Event",
    "Finished",
    "GroupVoided",
    "Ignored",
    "Purpose",
    "Resumed",
    "Returned",
    "RolledBack",
    "Segment",
    "Skipped",
    "Started",
    "Voided",
    "Withheld",
]

Purpose = Literal["train", "eval"]


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a trajectory that one version of the policy generated."""

    version: Version
    tokens: int


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events. `at` is the caller's clock, for people; no rule reads it."""

    at: float = 0.0


class Configured(_Event, frozen=True, kw_only=True, tag="configured"):
    """The settings from here on."""

    number: int
    settings: Settings

    @property
    def id(self) -> str:
        return f"configure:{self.number}"


class Admitted(_Event, frozen=True, kw_only=True, tag="admitted"):
    """A group is admitted: n tickets for one prompt."""

    group: str
    prompt: int
    """The prompt's number in the data order; evaluations are numbered separately."""
    task: str
    head: Version
    size: int
    attempt: int = 0
    requeues: int = 0
    """How often the prompt was requeued for a reason that counts."""
    resampled: int = 0
    """How often it was requeued to be sampled with other seeds."""
    purpose: Purpose = "train"

    @property
    def id(self) -> str:
        return f"admit:{self.group}"


class Skipped(_Event, frozen=True, kw_only=True, tag="skipped"):
    """A prompt's turn came while its task was excluded."""

    prompt: int
    task: str
    attempt: int = 0
    """Above 0 for a requeued prompt."""

    @property
    def id(self) -> str:
        return f"skip:{self.prompt}-{self.attempt}" if self.attempt else f"skip:{self.prompt}"


class Returned(_Event, frozen=True, kw_only=True, tag="returned"):
    """A task that was excluded through no fault of its own returns, with its prompts."""

    task: str
    number: int
    """The number of earlier returns."""

    @property
    def id(self) -> str:
        return f"return:{self.number}"


class Started(_Event, frozen=True, kw_only=True, tag="started"):
    """A worker has taken a ticket; its tokens are of this version or later."""

    ticket: str
    version: Version
    worker: str = ""

    @property
    def id(self) -> str:
        return f"start:{self.ticket}:{self.worker}"


class Resumed(_Event, frozen=True, kw_only=True, tag="resumed"):
    """A running rollout continues with newer weights; earlier tokens are not trained on."""

    ticket: str
    version: Version

    @property
    def id(self) -> str:
        return f"resume:{self.ticket}:{self.version}"


class Finished(_Event, frozen=True, kw_only=True, tag="finished"):
    """A rollout was graded."""

    ticket: str
    reward: float
    ending: Ending
    seconds: float
    segments: tuple[Segment, ...] = ()
    trial: str = ""
    """The id of the graded trial. After a power cut a ticket may have had another trial, whose
    files still exist."""

    @property
    def id(self) -> str:
        return f"final:{self.ticket}"


class Voided(_Event, frozen=True, kw_only=True, tag="voided"):
    """A rollout is void."""

    ticket: str
    cause: Cause
    reason: str = ""
    seconds: float = 0.0
    retry: bool = False
    """It is retried, under the next ticket of the same member."""
    counts: bool = True
    """Whether it counts towards the retry limits. False after a stop or restart of the run."""
    anew: bool = False
    """The next try uses other seeds: with the same it would repeat this one."""

    @property
    def id(self) -> str:
        return f"final:{self.ticket}"


class Withheld(_Event, frozen=True, kw_only=True, tag="withheld"):
    """Members of a group are not trained on; their rewards still shape its baseline."""

    group: str
    tickets: tuple[str, ...]
    version: Version
    """Unstarted members count from here."""

    @property
    def id(self) -> str:
        return f"withhold:{self.group}:{self.version}:{'+'.join(self.tickets)}"


class GroupVoided(_Event, frozen=True, kw_only=True, tag="group_voided"):
    """A whole group is given up and its prompt requeued; that of an evaluation is not."""

    group: str
    cause: Cause
    reason: str = ""
    counts: bool = True
    """Whether it counts towards the limit after which the task is excluded."""

    @property
    def id(self) -> str:
        return f"void:{self.group}"


class Consumed(_Event, frozen=True, kw_only=True, tag="consumed"):
    """Training on a batch begins."""

    version: Version
    """The version that the step starts from."""
    groups: tuple[str, ...]
    rollbacks: int = 0
    """The number of earlier ones: a repeated step is a different one."""

    @property
    def id(self) -> str:
        return f"consume:{self.version}:{self.rollbacks}"


class Committed(_Event, frozen=True, kw_only=True, tag="committed"):
    """The step is done: this version exists, and the batch is used up."""

    version: Version
    checkpoint: str = ""

    @property
    def id(self) -> str:
        return f"commit:{self.version}"


class RolledBack(_Event, frozen=True, kw_only=True, tag="rolled_back"):
    """The run continues from an earlier version; groups of later steps are live again."""

    number: int
    parent: Version
    """The version whose weights were restored."""
    version: Version
    """The version from here on: the restored one, or the first of a new lineage."""
    restored: tuple[Group, ...] = ()

    @property
    def id(self) -> str:
        return f"rollback:{self.number}"


class Ignored(_Event, frozen=True, kw_only=True, tag="ignored"):
    """A report about a ticket or a group did not fit the books."""

    number: int
    what: str
    about: str

    @property
    def id(self) -> str:
        return f"ignore:{self.number}"


Event = (
    Configured
    | Admitted
    | Skipped
    | Returned
    | Started
    | Resumed
    | Finished
    | Voided
    | Withheld
    | GroupVoided
    | Consumed
    | Committed
    | RolledBack
    | Ignored
)
