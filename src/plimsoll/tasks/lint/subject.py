"""A task under lint: its parts, parsed once and shared by all rules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from plimsoll.core.network import PUBLIC, NetworkPolicy
from plimsoll.tasks.lint.build import Build
from plimsoll.tasks.lint.fetch import Fetch
from plimsoll.tasks.lint.fetches import (
    agent_fetches,
    build_fetches,
    grader_fetches,
    hook_fetches,
    set_up_fetches,
    task_builds,
)
from plimsoll.tasks.lint.grader import Grader
from plimsoll.tasks.lint.image import UNKNOWN_IMAGE, Image, read_image, satisfied
from plimsoll.tasks.lint.reach import gets_through
from plimsoll.tasks.lint.scan import Found
from plimsoll.tasks.lint.simulation import Assumed, Simulation, Write
from plimsoll.tasks.lint.state import State
from plimsoll.tasks.lint.syntax import Command
from plimsoll.tasks.task import Step, Task

__all__ = ["GradedStep", "Settings", "Subject", "Ways"]


def _nothing_staged(_fetch: Fetch) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the tasks are to run."""

    backend: str = "local"
    offline: bool = False
    """No phase has a network, the build included."""
    staged: Callable[[Fetch], bool] = _nothing_staged
    """Whether an asset answers a fetch."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The states that a script may end in, and the rewards that it may write."""

    ends: tuple[State, ...]
    writes: tuple[Write, ...]


def _nothing_assumed(_script: str, _command: Command) -> Assumed | None:
    return None


@dataclass(frozen=True, eq=False)
class GradedStep:
    """A step with its tests and the image that they run in."""

    step: Step
    grader: Grader
    image: Image

    @cached_property
    def fetches(self) -> tuple[Found, ...]:
        """What the tests fetch."""
        return grader_fetches(self.grader, self.image.workdir)

    @cached_property
    def ways(self) -> Ways:
        """Every way that the test script may go when nothing is known to fail."""
        simulation = Simulation(self.grader, _nothing_assumed)
        ends = simulation.run()
        return Ways(ends, tuple(simulation.writes))


class Subject:
    """One task. Whatever a rule asks for is worked out when it is first asked for."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self.task = task
        self.settings = settings

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        return task_builds(self.task)

    @cached_property
    def images(self) -> dict[str, Image]:
        """What is known of each built image, by its Dockerfile."""
        return {build.file: read_image(build) for build in self.builds}

    @property
    def image(self) -> Image:
        """The image that the agent works in."""
        return self.images.get("environment/Dockerfile", UNKNOWN_IMAGE)

    @cached_property
    def steps(self) -> tuple[GradedStep, ...]:
        return tuple(GradedStep(s, Grader(s), self._image_of(s)) for s in self.task.steps)

    def _image_of(self, step: Step) -> Image:
        if not step.separate_verifier:
            return self.image
        own = step.verifier_dockerfile
        if own is not None:
            return self.images.get(own.relative_to(self.task.path).as_posix(), UNKNOWN_IMAGE)
        return UNKNOWN_IMAGE if step.verifier_environment is not None else self.image

    @cached_property
    def build_fetches(self) -> tuple[Found, ...]:
        return tuple(found for build in self.builds for found in build_fetches(build))

    def set_up_fetches(self, step: Step) -> tuple[Found, ...]:
        return set_up_fetches(self.task, step, self.image.workdir)

    def agent_fetches(self, step: Step) -> tuple[Found, ...]:
        return agent_fetches(step, self.image.workdir)

    def hook_fetches(self, step: Step) -> tuple[Found, ...]:
        return hook_fetches(self.task, step)

    def fails(
        self, fetch: Fetch, policy: NetworkPolicy = PUBLIC, image: Image | None = None
    ) -> bool:
        """Whether a fetch cannot succeed: no network, not staged, not in the image already."""
        if not self.settings.offline and gets_through(fetch, policy):
            return False
        if image is not None and satisfied(image, fetch):
            return False
        return not self.settings.staged(fetch)
