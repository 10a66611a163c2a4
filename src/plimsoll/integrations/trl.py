"""Plimsoll's trials in TRL: GRPOTrainer takes its completions and rewards from sandboxes.

    with TrlRollouts("night.toml", "models/qwen3-0.6b") as rollouts:
        trainer = GRPOTrainer(
            model="models/qwen3-0.6b",
            train_dataset=rollouts.dataset(),
            rollout_func=rollouts,
            reward_funcs=verdict,
            args=GRPOConfig(...),
        )
        trainer.train()

Each prompt of the dataset is the name of a task, and TRL chooses among them. The trainer's weights
are published to the policy before the first trial of a step, so rollouts are on-policy. Answers are
sampled from the unmodified distribution, as in `plimsoll run`: at temperature 1, without
truncation or penalties, whatever generation_config.json sets. A GRPOConfig with another sampling
is rejected: at another temperature TRL's log probabilities would differ from the policy's.

A member that is still void after its retries gets no number: `verdict` returns None for it, TRL
leaves it out of the group's baseline, and none of its tokens is trained on. Custom reward
functions must also return None where `plimsoll_reward` is None.

TRL takes one sample per trial. If an agent went back in its conversation, the sample with the most
tokens is trained on; `plimsoll/left_out` counts the tokens of the others.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from importlib import import_module, metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from packaging.version import Version as Release
from torch.nn import Module

from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.core.versions import Version
from plimsoll.integrations.token_rows import TokenRow, token_rows
from plimsoll.integrations.trials import Trials
from plimsoll.runs.files.results import Row
from plimsoll.training.policies.local.torch_policy import TorchPolicy
from plimsoll.training.policies.protocol import Policy, Weights
from plimsoll.workers.worker.policy_service import ServedPolicy

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["LoopThread", "TrlRollouts", "verdict"]

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines in a thread of its own while it is entered. Leaving it ends the thread and
    cancels running coroutines."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._stay()), name=name)
        self._is_up = threading.Event()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and return its result. It is cancelled if this thread is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _stay(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._is_up.set()
        await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


_MIN_VERSION = "1.16"
"""Older versions count a completion without a reward as 0."""
_PLAIN: dict[str, tuple[float | None, ...]] = {
    "temperature": (1.0, None),
    "top_p": (1.0, None),
    "top_k": (0, -1, None),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0, None),
}
"""Settings of GRPOConfig, with the values that leave the distribution unmodified."""
_REWARD, _LEFT_OUT = "plimsoll_reward", "plimsoll_left_out"


class _Datasets(Protocol):
    def from_dict(self, mapping: dict[str, list[str]]) -> "Dataset": ...


class _Trainer(Protocol):
    """The part of GRPOTrainer that is used."""

    model: Module
    processing_class: Any
    state: Any
    accelerator: Any
    args: Any


class TrlRollouts:
    """The rollout function of a GRPOTrainer. Policy and workers are up while it is entered.

    `model` is the folder that TRL trains from. Without a separate policy, the trainer's process
    serves it.
    """

    def __init__(
        self,
        config: Config | Path | str,
        model: Path | str,
        *,
        policy: Policy | None = None,
        out: Path | str | None = None,
        keep_going: bool = False,
    ) -> None:
        _check_version()
        self._config = _sampled_plainly(config)
        self._base = Path(model)
        self._policy = TorchPolicy(self._base) if policy is None else policy
        self._out = None if out is None else Path(out)
        self._keep_going = keep_going
        self._published: tuple[int, int] | None = None
        self._calls = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._loop = stack.enter_context(LoopThread("plimsoll-trl"))
            self._loop.run(self._policy.__aenter__())
            stack.callback(lambda: self._loop.run(self._policy.__aexit__(None, None, None)))
            self._trials = Trials(
                self._config,
                ServedPolicy(self._policy.urls, self._policy.key, self._policy.model),
                out=self._out,
                kind="trl",
                keep_going=self._keep_going,
            )
            self._loop.run(self._trials.__aenter__())
            stack.callback(lambda: self._loop.run(self._trials.__aexit__(None, None, None)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def directory(self) -> Path:
        """The directory of trials and their results."""
        return self._trials.directory.path

    def dataset(self) -> "Dataset":
        """A dataset with a row for each task that is not in quarantine."""
        made = cast(_Datasets, import_module("datasets").Dataset)
        return made.from_dict({"prompt": self._trials.tasks})

    def __call__(self, prompts: Sequence[str], trainer: _Trainer) -> dict[str, list[Any]]:
        """Run one trial per prompt. TRL repeats a prompt once for each completion that it needs."""
        _check_trainer(trainer)
        rows = self._loop.run(self._roll_out(prompts, trainer))
        pad = cast(int, trainer.processing_class.pad_token_id)
        # The shortest row that TRL accepts, in place of a row without trained tokens.
        nothing = TokenRow(prompt=[pad], completion=[pad], mask=[0], logprobs=[0.0])
        samples = [token_rows(row.trajectory) if row.reward is not None else [] for row in rows]
        if not any(samples):
            raise TrainingError(_why_nothing(rows, self.directory))
        chosen = [of_trial[-1] if of_trial else nothing for of_trial in samples]
        return {
            "prompt_ids": [sample.prompt for sample in chosen],
            "completion_ids": [sample.completion for sample in chosen],
            "logprobs": [sample.logprobs for sample in chosen],
            "env_mask": [sample.mask for sample in chosen],
            _REWARD: [row.reward for row in rows],
            _LEFT_OUT: [sum(one.trained for one in of_trial[:-1]) for of_trial in samples],
        }

    async def _roll_out(self, prompts: Sequence[str], trainer: _Trainer) -> list[Row]:
        await self._publish(trainer)
        self._calls += 1
        return await self._trials.run_all(prompts, str(self._calls))

    async def _publish(self, trainer: _Trainer) -> None:
        """Publish the trainer's current weights to the policy."""
        now = id(trainer), cast(int, trainer.state.global_step)
        if now != self._published:
            version = Version(0, now[1])
            await self._policy.publish(Weights(trainer.model.state_dict(), self._base), version)
            self._trials.set_version(version)
            self._published = now


def verdict(**columns: object) -> list[float | None]:
    """The reward function: the reward of each trial, None for a void one."""
    rewards = cast("list[float | None]", columns[_REWARD])
    log = cast("Callable[[str, float], None]", columns["log_metric"])
    log("plimsoll/void", sum(one is None for one in rewards) / len(rewards))
    log("plimsoll/left_out", sum(cast("list[int]", columns[_LEFT_OUT])))
    return rewards


def _check_version() -> None:
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError as error:
        raise UsageError("TRL is not installed: pip install 'plimsoll-rl[trl]'") from error
    if Release(version) < Release(_MIN_VERSION):
        raise UsageError(
            f"TRL {version} is too old for Plimsoll's rollouts: {_MIN_VERSION} is needed"
        )


def _sampled_plainly(config: Config | Path | str) -> Config:
    """The config with unmodified sampling, the only one whose log probabilities TRL can compute."""
    read = config if isinstance(config, Config) else load_config(Path(config))
    if read.policy.sampling == "asked":
        raise UsageError(
            '[policy] sampling is "asked", and TRL computes the log probabilities of the model as '
            "it is: leave it out of the config"
        )
    policy = read.policy.model_copy(update={"sampling": "model"})
    return read.model_copy(update={"policy": policy})


def _check_sampling(args: Any) -> None:  # noqa: ANN401 - TRL's config, which has no types
    """Raise `UsageError` if GRPOConfig requests another sampling."""
    given = {name: getattr(args, name, None) for name in _PLAIN}
    others = [f"{name}={given[name]:g}" for name in _PLAIN if given[name] not in _PLAIN[name]]
    if others:
        raise UsageError(
            f"GRPOConfig has {', '.join(others)}, and Plimsoll's rollouts are sampled from the "
            "model as it is: leave it out of GRPOConfig"
        )


def _check_trainer(trainer: _Trainer) -> None:
    _check_sampling(trainer.args)
    if (processes := trainer.accelerator.num_processes) > 1:
        raise UsageError(
            f"TRL runs {processes:,} processes; Plimsoll's rollouts support one: start a single "
            "process, or train with `plimsoll run` under torchrun"
        )
    if hasattr(trainer.model, "peft_config"):
        raise UsageError("peft adapters are not supported: the policy takes whole weights")


def _why_nothing(rows: Sequence[Row], directory: Path) -> str:
    """The reason why there is no token to train on."""
    void = next((row for row in rows if row.cause is not None), None)
    if void is None:
        return f"no trial has token ids to train on: see what the policy returns in {directory}"
    return f"nothing was graded: {void.task} is void ({void.cause}: {void.reason}); see {directory}"
