"""Plimsoll's trials in verl: an agent loop that runs one trial for one sample of a batch.

verl finds it through a file, set as `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: plimsoll
      _target_: plimsoll.integrations.verl.PlimsollAgentLoop
      config: /shared/night.toml

Rows of the dataset have `agent_name` = "plimsoll", and the name of a task as `task`. Agents use
verl's own servers through a gateway: verl's sampling settings apply, whatever an agent asks for,
and the sampled tokens themselves are trained on.

A trial that is still void after its retries never becomes a number. With verl's V1 trainers
(`sync`, `colocate_async` and `separate_async`) its session has no output, and its group is trained
on without it. If only one member of a group is graded, there is nothing to compare it with: its
tokens are masked, unless the estimator needs no group. If none is graded, the sessions raise: the
asynchronous trainers replace such a group, and so does `sync` with
`trainer.v1.sampler.sync_refill_failed_groups=True`.

Trainers before V1, and the experimental fully asynchronous one, require an output for each sample,
and stop at a trial that stays void. The first sample logs a warning about it.

A conversation may have `rollout.prompt_length` + `rollout.response_length` tokens. If its prompt is
shorter than the former, tokens beyond the latter are not trained on: `plimsoll_left_out`, a column
of verl's batches, counts the generated tokens among them.
"""

import asyncio
import functools
import itertools
import logging
import secrets
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from transformers import PreTrainedTokenizerBase

from plimsoll.config.file import load_config
from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.core.ids import short_id
from plimsoll.gateway.chat_server.server import ChatServer, listen
from plimsoll.integrations.token_rows import TokenRow, token_rows
from plimsoll.integrations.trials import Trials
from plimsoll.integrations.verl_engine import (
    Manager,
    Sampling,
    VerlEngine,
    agent_loop,
    check_interface,
)
from plimsoll.runs.files.results import Row
from plimsoll.workers.worker.policy_service import ServedPolicy

__all__ = ["PlimsollAgentLoop", "close"]

_log = logging.getLogger(__name__)

_UNGROUPED = {"gae", "reinforce_plus_plus", "remax"}
"""Advantage estimators that do not compare members of a group."""


class TrainerConfig(Protocol):
    """The wrapper in which verl passes its whole config to an agent loop."""

    config: Any


class PlimsollAgentLoop:
    """The agent loop of one sample. verl makes one per sample; shared services stay up."""

    def __init__(
        self,
        config: str,
        trainer_config: TrainerConfig,
        server_manager: Manager,
        tokenizer: PreTrainedTokenizerBase,
        out: str | None = None,
        **others: object,
    ) -> None:
        del others  # verl's arguments for loops that call the model themselves
        check_interface()
        rollout = trainer_config.config.actor_rollout_ref.rollout
        estimator = str(trainer_config.config.algorithm.adv_estimator)
        self._compares = estimator not in _UNGROUPED
        self._config = config
        self._out = out
        self._prompt_length = int(rollout.prompt_length)
        self._response_length = int(rollout.response_length)
        self._manager = server_manager
        self._tokenizer = tokenizer

    async def run(self, sampling_params: Mapping[str, object], **columns: object) -> object:
        """Run one trial: an `AgentLoopOutput`, or a list of them if verl accepts several."""
        if "task" not in columns:
            raise UsageError("a row of the dataset names no task: give it a column `task`")
        sampling, task = Sampling(sampling_params), str(columns["task"])
        # Only verl's V1 trainers name sessions, and accept none or several outputs of one.
        if "session_id" in columns:
            return await self._session(sampling, task, str(columns["uid"]))
        _warn_of_voids()
        return (await self._trial(sampling, task))[-1]

    async def _session(self, sampling: Sampling, task: str, uid: str) -> list[Any]:
        """The outputs of a member of a group; none if it is void and others are not."""
        outputs, void = list[Any](), None
        with _joined(uid) as group:
            try:
                outputs = await self._trial(sampling, task)
                group.graded += 1
            except _NotGraded as error:
                void = error
        # verl continues with a group when all its sessions have ended, so this delays nothing.
        await group.settled.wait()
        if void is not None:
            if not group.graded:
                raise void
            _log.warning("%s", void)
        elif self._compares and group.graded == 1 and group.size > 1:
            _mask(outputs)
        return outputs

    async def _trial(self, sampling: Sampling, task: str) -> list[Any]:
        """The outputs of a graded trial, the one with the most tokens last."""
        services = await self._shared_services(sampling)
        row = await services.run(task)
        if row.reward is None:
            raise _NotGraded(f"{row.task} is void ({row.cause}: {row.reason}): left out")
        samples = await asyncio.to_thread(token_rows, row.trajectory)
        if not samples:
            raise _NotGraded(f"{row.task} was graded without a token to train on: left out")
        return [self._output(row, sample, sampling.logprobs) for sample in samples]

    async def _shared_services(self, sampling: Sampling) -> "_SharedServices":
        """The services shared by samples with these settings; started by the first of them."""
        key = (self._config, sampling.key)
        if key not in _services:
            context = self._prompt_length + self._response_length
            engine = VerlEngine(self._manager, self._tokenizer, sampling, context)
            _services[key] = asyncio.create_task(
                _SharedServices(self._config, engine, self._out).start()
            )
        starting = _services[key]
        try:
            return await asyncio.shield(starting)
        except Exception:  # after any error, the next sample tries to start it again
            # Another sample may have done so already.
            if _services.get(key) is starting:
                del _services[key]
            raise

    def _output(self, row: Row, sample: TokenRow, logprobs: bool) -> object:
        if len(sample.prompt) > self._prompt_length:
            raise UsageError(
                f"{row.task} begins with {len(sample.prompt)} tokens, and rollout.prompt_length is "
                f"{self._prompt_length}: raise it"
            )
        room = self._response_length
        left_out = sum(sample.mask[room:])
        if left_out:
            _warn_of(room)
        steps = {"min_global_steps": sample.oldest, "max_global_steps": sample.newest}
        return agent_loop().AgentLoopOutput(
            prompt_ids=sample.prompt,
            response_ids=sample.completion[:room],
            response_mask=sample.mask[:room],
            response_logprobs=sample.logprobs[:room] if logprobs else None,
            reward_score=row.reward,
            num_turns=2 * sample.turns,
            metrics=agent_loop().AgentLoopMetrics(generate_sequences=row.seconds),
            extra_fields={"reward_extra_info": {}, "plimsoll_left_out": left_out, **steps},
        )


class _NotGraded(TrainingError):
    """A trial without anything to train on."""


class _Group:
    """The sessions of one prompt. verl starts all of them at once, on one event loop."""

    def __init__(self) -> None:
        self.size = 0
        self.running = 0
        self.graded = 0
        self.settled = asyncio.Event()
        """Set once every session has ended."""


_groups: dict[str, _Group] = {}
"""Prompts whose sessions run in this process, by verl's name for them."""


@contextmanager
def _joined(uid: str) -> Generator[_Group]:
    """Register a session of a prompt while the block runs."""
    group = _groups.setdefault(uid, _Group())
    group.size += 1
    group.running += 1
    try:
        yield group
    finally:
        group.running -= 1
        if not group.running:
            del _groups[uid]
            group.settled.set()


def _mask(outputs: list[Any]) -> None:
    """Mask all tokens: verl would take the reward of a lone member for its advantage."""
    for output in outputs:
        output.extra_fields["plimsoll_left_out"] += sum(output.response_mask)
        output.response_mask = [0] * len(output.response_mask)


@functools.cache  # logged once per process
def _warn_of_voids() -> None:
    _log.warning(
        "this trainer of verl wants an output for each sample, so it ends at the first trial that "
        "stays void. To have void trials left out of their groups, use a V1 trainer: "
        "trainer.use_v1=True with trainer.v1.trainer_mode sync, colocate_async or separate_async"
    )


@functools.cache  # logged once per setting
def _warn_of(response_length: int) -> None:
    _log.warning(
        "some conversations generate more than rollout.response_length = %d tokens after their "
        "prompt, and the rest is not trained on (plimsoll_left_out counts it): raise it",
        response_length,
    )


class _SharedServices:
    """A server in front of verl's servers, and the workers whose agents use it."""

    def __init__(self, config: str, engine: VerlEngine, out: str | None) -> None:
        self._config = load_config(Path(config))
        self._engine = engine
        self._out = None if out is None else Path(out) / short_id()
        self._stack = AsyncExitStack()
        self._numbers = itertools.count()

    async def start(self) -> Self:
        key, host = secrets.token_hex(16), self._config.training.listen
        async with AsyncExitStack() as stack:
            server = ChatServer(self._engine, key)
            port = await stack.enter_async_context(listen(server.handle, host))
            served = ServedPolicy((f"http://{host}:{port}/v1",), key)
            made = Trials(self._config, served, out=self._out, kind="verl")
            self._trials = await stack.enter_async_context(made)
            self._stack = stack.pop_all()
        return self

    async def run(self, task: str) -> Row:
        return await self._trials.run(task, str(next(self._numbers)))

    async def close(self) -> None:
        await self._stack.aclose()


_services: dict[tuple[str, str], "asyncio.Task[_SharedServices]"] = {}


async def close() -> None:
    """End the shared services of this process. Killing the process also ends them."""
    while _services:
        _, started = _services.popitem()
        await (await started).close()
