"""Main's container as a sandbox: like any other, with its project around it."""

from dataclasses import dataclass, fields

from plimsoll.sandboxes.container.sandbox import ContainerSandbox
from plimsoll.sandboxes.docker.answers import Info
from plimsoll.sandboxes.docker.client import AttachWire
from plimsoll.sandboxes.docker.compose_project import Project
from plimsoll.sandboxes.docker.containers import NO_NETWORK_MODE, Plan
from plimsoll.sandboxes.docker.engine import Engine
from plimsoll.sandboxes.docker.errors import EngineError, Lost
from plimsoll.sandboxes.docker.files import Carried
from plimsoll.sandboxes.docker.keeper import ContainerKeeper
from plimsoll.sandboxes.docker.networks import Networks, is_no_network

__all__ = ["ComposeKeeper", "ComposeSandbox"]


@dataclass(frozen=True, slots=True)
class _MainPlan(Plan):
    """The container of a project's main before it is made."""

    project: Project | None = None

    def config(self, info: Info) -> dict[str, object]:
        config = Plan.config(self, info)
        return self.project.adapt(config) if self.project else config


class ComposeKeeper(ContainerKeeper):
    """Moves a whole project between networks, and removes all of it.

    Main stays in the project's own networks, whatever the policy is: they lead nowhere else.
    """

    def __init__(self, engine: Engine, networks: Networks, plan: Plan, project: Project) -> None:
        parts = {part.name: getattr(plan, part.name) for part in fields(plan)}
        super().__init__(engine, networks, _MainPlan(**parts, project=project))
        self._project = project
        self._alone = False
        """Whether the project is removed."""
        self._public = plan.network if plan.network != NO_NETWORK_MODE else None
        if project.main.networks:
            self._on = None

    async def start(self, carried: Carried) -> AttachWire:
        wire = await super().start(carried)
        await self._project.complete(self._plan.name)
        if self._project.main.networks and self._public is not None:
            try:
                await super()._join(self._public)
            except EngineError as error:
                if is_no_network(error):
                    raise Lost(str(self._engine.endpoint), self._public) from None
                raise
        return wire

    async def _join(self, network: str) -> None:
        joined = self._on == network
        await super()._join(network)
        if not joined:
            await self._project.join(network)

    async def _leave(self) -> None:
        left = self._on
        await super()._leave()
        if left not in (None, NO_NETWORK_MODE):
            await self._project.leave(left)

    @property
    def removed(self) -> bool:
        return super().removed and self._alone

    async def remove(self) -> None:
        await super().remove()
        if not self._alone:
            await self._project.remove()
            self._alone = True


class ComposeSandbox(ContainerSandbox):
    """Main, which can be put back to its beginning where its services cannot."""

    async def reset(self) -> str:
        return "the services beside it keep what they were told"
