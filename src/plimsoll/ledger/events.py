"""What can happen to a rollout, each as one event of the journal.

Every event has an id made from what it is about, so that writing it a second time changes
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
    """A group may run: so many tickets for one prompt."""

    group: str
    prompt: int
    """The prompt's place in the order of the data; counted apart for evaluations."""
    task: str
    head: Version
    size: int
    attempt: int = 0
    requeues: int = 0
    """How often the prompt has come again for a reason that counts."""
    resampled: int = 0
    """How often it has come again to be sampled with other seeds."""
    purpose: Purpose = "train"

    @property
    def id(self) -> str:
        return f"admit:{self.group}"


class Skipped(_Event, frozen=True, kw_only=True, tag="skipped"):
    """A prompt's turn came, and its task is in quarantine."""

    prompt: int
    task: str
    attempt: int = 0
    """More than 0 for one that was to come again."""

    @property
    def id(self) -> str:
        return f"skip:{self.prompt}-{self.attempt}" if self.attempt else f"skip:{self.prompt}"


class Returned(_Event, frozen=True, kw_only=True, tag="returned"):
    """A task that was out by no fault of its own is in again, and so are its prompts."""

    task: str
    number: int
    """How many there were before."""

    @property
    def id(self) -> str:
        return f"return:{self.number}"


class Started(_Event, frozen=True, kw_only=True, tag="started"):
    """A worker has taken a ticket; what it generates is of this version or later."""

    ticket: str
    version: Version
    worker: str = ""

    @property
    def id(self) -> str:
        return f"start:{self.ticket}:{self.worker}"


class Resumed(_Event, frozen=True, kw_only=True, tag="resumed"):
    """A running rollout goes on with newer weights; what it said before is not trained on."""

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
    """The id of the trial that was graded. After a power cut a ticket may have had another one,
    whose files are still there."""

    @property
    def id(self) -> str:
        return f"final:{self.ticket}"


class Voided(_Event, frozen=True, kw_only=True, tag="voided"):
    """A rollout came to nothing."""

    ticket: str
    cause: Cause
    reason: str = ""
    seconds: float = 0.0
    retry: bool = False
    """It is tried again, under the next ticket of the same place in the group."""
    counts: bool = True
    """Whether it counts towards the limits of tries. False after a stop or restart of the run."""
    anew: bool = False
    """The next try of its place is sampled with other seeds: it would repeat this one."""

    @property
    def id(self) -> str:
        return f"final:{self.ticket}"


class Withheld(_Event, frozen=True, kw_only=True, tag="withheld"):
    """Members of a group are not trained on; their rewards still shape its baseline."""

    group: str
    tickets: tuple[str, ...]
    version: Version
    """Members that have not started count from here on."""

    @property
    def id(self) -> str:
        return f"withhold:{self.group}:{self.version}:{'+'.join(self.tickets)}"


class GroupVoided(_Event, frozen=True, kw_only=True, tag="group_voided"):
    """A group is given up as a whole, and its prompt comes again; an evaluation's does not."""

    group: str
    cause: Cause
    reason: str = ""
    counts: bool = True
    """Whether it counts towards the limit after which the task is out."""

    @property
    def id(self) -> str:
        return f"void:{self.group}"


class Consumed(_Event, frozen=True, kw_only=True, tag="consumed"):
    """A batch is being trained on."""

    version: Version
    """The version that the step starts from."""
    groups: tuple[str, ...]
    rollbacks: int = 0
    """How many there were before: a step that was undone and is made again is another one."""

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
    """The run goes on from an earlier version; what later steps consumed is live again."""

    number: int
    parent: Version
    """The version whose weights were restored."""
    version: Version
    """What it is called from here on: itself, or the first of a new lineage."""
    restored: tuple[Group, ...] = ()

    @property
    def id(self) -> str:
        return f"rollback:{self.number}"


class Ignored(_Event, frozen=True, kw_only=True, tag="ignored"):
    """Something was said of a ticket or a group that does not fit what is known of it."""

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
