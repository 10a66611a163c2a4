"""Messages between the controller of a run and its workers.

Each message is a JSON object with a tag. Trajectories never travel in a message: they are files.
"""

import msgspec

from plimsoll.core.versions import Version
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.ledger.events import Segment
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.trials.policy_usage import PolicyUsage
from plimsoll.trials.verdicts import Verdict

__all__ = [
    "AskVariables",
    "Beat",
    "Begin",
    "Cancel",
    "Drain",
    "EnvironmentOptions",
    "Expect",
    "Failed",
    "Finished",
    "FromWorker",
    "Hello",
    "Kind",
    "NewVersion",
    "Order",
    "Paused",
    "Ready",
    "Result",
    "Run",
    "SandboxReport",
    "Stop",
    "ToWorker",
    "Variables",
    "WorkerSpec",
]


class Kind(msgspec.Struct, frozen=True):
    """The fields of an order that decide which sandbox it needs."""

    task: str
    name: str
    agent: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket with everything that a worker needs to run its trial."""

    ticket: str
    """Its name in the ledger; a retry has another."""
    task: str
    """The task's folder."""
    name: str
    """The task's name in the run."""
    attempt: int
    folder: str
    """The folder of the trial. If it already exists, the trial writes to `<folder>~2`."""
    seed_name: str = ""
    """The name that seeds are derived from: orders with the same name get the same answers."""
    agent: str = ""
    """The agent, if it is not the run's own: canaries are run by the oracle."""

    @property
    def kind(self) -> Kind:
        return Kind(self.task, self.name, self.agent)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a ticket."""

    ticket: str
    verdict: Verdict
    seconds: float
    sandbox_seconds: float | None = None
    """Seconds until its sandbox had started; None if there was no start."""
    paused_seconds: float | None = None
    """Seconds in which the policy was paused; None if it never was."""
    trial: str = ""
    """The trial's id; empty if no trial was started."""
    folder: str = ""
    """The trial's folder, if it is not the folder of the order."""
    trajectory: str = ""
    """Path relative to the run directory, or an fsspec path; empty if there is none."""
    segments: tuple[Segment, ...] = ()
    """Answer tokens by the version that generated them."""
    usage: PolicyUsage | None = None
    """Turns and tokens; None if the agent uses no policy."""


class SandboxReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="report"):
    """Warnings and sandbox timings of a worker since its last report."""

    warnings: tuple[str, ...] = ()
    sandboxes: Readings = Readings()


class EnvironmentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the run that a worker needs."""

    config: msgspec.Raw
    """The effective config, as JSON."""
    directory: str
    """The run directory."""
    stored_as: str = ""
    """The run's unique folder in a trajectory storage that several runs share."""
    capabilities: Capabilities | None = None
    """Features of the policy's servers, probed once by the run. Workers do not probe, so they can
    start while the servers are down or paused."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The start-up parameters of a worker."""

    run: str
    options: EnvironmentOptions
    concurrency: int
    """The number of slots: trials that it runs at once."""
    memory_mb: int | None = None
    """Above this it takes no more tickets, and is replaced when its trials have ended."""
    beat_seconds: float = 0.5
    trim_seconds: float = 10.0
    grace_seconds: float = 30.0
    """Time for running trials when the worker gets SIGTERM."""
    environment: dict[str, str] = {}
    """Environment variables. A shell's export does not reach the workers of a cluster."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The answer to a worker's hello: start with this spec."""

    spec: WorkerSpec


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a ticket."""

    order: Order


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel a ticket. Its result still comes: void, cancelled."""

    ticket: str
    reason: str


class Expect(msgspec.Struct, frozen=True, tag="expect"):
    """The kinds of a worker's next orders, without those it has. Replaces the previous message."""

    kinds: tuple[Kind, ...]


class NewVersion(msgspec.Struct, frozen=True, tag="new_version"):
    """The policy generates with this version from now on."""

    version: Version


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """The policy is paused for new weights, or resumed."""

    paused: bool
    drains: bool = False
    """The policy still answers the requests that it had before the pause."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no more tickets, cancel the running ones after `grace` seconds, then exit."""

    grace: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cancel everything, clean up and exit."""


ToWorker = Begin | Run | Cancel | Expect | NewVersion | Paused | Drain | Stop


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker process has started and asks for its spec."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker can take tickets."""

    host: str
    rss_mb: float = 0.0
    """Its memory before the first ticket."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A ticket has ended."""

    result: Result


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A worker cannot start or cannot continue: its last output."""

    reason: str


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A heartbeat, sent by a thread that does not wait for the event loop."""

    rss_mb: float
    lag: float
    """Seconds by which the event loop is late."""
    slowest: float = 0.0
    """The longest lag since the last beat, in seconds."""
    counts: dict[str, int] = {}
    """Live objects by kind, as last counted on the event loop."""
    full: bool = False
    """It takes no more tickets: it is above its memory limit, or got SIGTERM."""


class AskVariables(msgspec.Struct, frozen=True, tag="ask_environment"):
    """A host that is about to start a worker asks for its environment variables."""


class Variables(msgspec.Struct, frozen=True, tag="environment"):
    """The answer to `AskVariables`."""

    variables: dict[str, str]


FromWorker = Hello | Ready | Finished | Failed | Beat | SandboxReport
