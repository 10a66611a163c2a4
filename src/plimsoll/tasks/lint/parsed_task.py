"""Parsed task: the parts of a task under lint, parsed once and shared by all rules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from plimsoll.core.permissions import PUBLIC, NetworkPolicy
from plimsoll.tasks.dockerfile.stages import DockerfileBuild
from plimsoll.tasks.fetches.fetch import Fetch, is_reachable
from plimsoll.tasks.fetches.finder import (
    agent_fetches,
    build_fetches,
    grader_fetches,
    hook_fetches,
    set_up_fetches,
    task_builds,
)
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.grader.grader import Grader
from plimsoll.tasks.lint.image_contents import (
    UNKNOWN_IMAGE,
    ImageContents,
    is_installed,
    read_image,
)
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, RewardWrite, Simulator
from plimsoll.tasks.lint.simulation.state import State
from plimsoll.tasks.shell.syntax import Command
from plimsoll.tasks.task import Step, Task

__all__ = ["GradedStep", "LintSettings", "ParsedTask", "ScriptOutcomes"]


def _nothing_staged(_fetch: Fetch) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class LintSettings:
    """The setting in which the tasks will run."""

    backend: str = "local"
    offline: bool = False
    """No phase has a network, including the build."""
    staged: Callable[[Fetch], bool] = _nothing_staged
    """Whether a staged asset covers a fetch."""


@dataclass(frozen=True, slots=True)
class ScriptOutcomes:
    """The possible end states of a script and the rewards that it may write."""

    ends: tuple[State, ...]
    writes: tuple[RewardWrite, ...]


def _no_assumption(_script: str, _command: Command) -> AssumedResult | None:
    return None


@dataclass(frozen=True, eq=False)
class GradedStep:
    """A step with its grader and the image that the grader runs in."""

    step: Step
    grader: Grader
    image: ImageContents

    @cached_property
    def fetches(self) -> tuple[FoundFetch, ...]:
        """The fetches of the tests."""
        return grader_fetches(self.grader, self.image.workdir)

    @cached_property
    def outcomes(self) -> ScriptOutcomes:
        """All outcomes of the test script if no command is assumed to fail."""
        simulator = Simulator(self.grader, _no_assumption)
        ends = simulator.run()
        return ScriptOutcomes(ends, tuple(simulator.writes))


class ParsedTask:
    """One task under lint. Its parts are computed on first use."""

    def __init__(self, task: Task, settings: LintSettings) -> None:
        self.task = task
        self.settings = settings

    @cached_property
    def builds(self) -> tuple[DockerfileBuild, ...]:
        return task_builds(self.task)

    @cached_property
    def images(self) -> dict[str, ImageContents]:
        """Contents of each built image, by its Dockerfile."""
        return {build.file: read_image(build) for build in self.builds}

    @property
    def image(self) -> ImageContents:
        """The image of the agent's sandbox."""
        return self.images.get("environment/Dockerfile", UNKNOWN_IMAGE)

    @cached_property
    def steps(self) -> tuple[GradedStep, ...]:
        return tuple(GradedStep(s, Grader(s), self._image_of(s)) for s in self.task.steps)

    def _image_of(self, step: Step) -> ImageContents:
        if not step.separate_verifier:
            return self.image
        own = step.verifier_dockerfile
        if own is not None:
            return self.images.get(own.relative_to(self.task.path).as_posix(), UNKNOWN_IMAGE)
        return UNKNOWN_IMAGE if step.verifier_environment is not None else self.image

    @cached_property
    def build_fetches(self) -> tuple[FoundFetch, ...]:
        return tuple(found for build in self.builds for found in build_fetches(build))

    def set_up_fetches(self, step: Step) -> tuple[FoundFetch, ...]:
        return set_up_fetches(self.task, step, self.image.workdir)

    def agent_fetches(self, step: Step) -> tuple[FoundFetch, ...]:
        return agent_fetches(step, self.image.workdir)

    def hook_fetches(self, step: Step) -> tuple[FoundFetch, ...]:
        return hook_fetches(self.task, step)

    def fails(
        self, fetch: Fetch, policy: NetworkPolicy = PUBLIC, image: ImageContents | None = None
    ) -> bool:
        """Whether a fetch always fails: no network, not staged and not in the image."""
        if not self.settings.offline and is_reachable(fetch, policy):
            return False
        if image is not None and is_installed(image, fetch):
            return False
        return not self.settings.staged(fetch)
