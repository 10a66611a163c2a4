"""The policy that a config asks for, and the folder its first weights are in."""

from contextlib import suppress
from pathlib import Path

from plimsoll.config.file import Config
from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.gateway.upstreams.capabilities import suggested_changes, training_support
from plimsoll.gateway.upstreams.factory import probe_policy
from plimsoll.runs.directory import RunDirectory
from plimsoll.training import tiny
from plimsoll.training.policies.local.torch_policy import TorchPolicy
from plimsoll.training.policies.remote.openai_policy import OpenAIPolicy
from plimsoll.training.policies.remote.weight_folders import FOLDER_FILE, weight_folder_of

__all__ = [
    "check_servers",
    "discard_weights",
    "make_local_policy",
    "make_remote_policy",
    "model_folder",
]


def model_folder(training: TrainingConfig) -> Path:
    """Where the model is that training begins with."""
    if training.policy == "tiny":
        if training.model is not None:
            raise UsageError(
                'the policy "tiny" has its own model: leave [training] model out, or take "torch"'
            )
        return tiny.folder()
    if training.model is None:
        raise UsageError(
            f'the policy "{training.policy}" needs a model: name its folder as [training] model'
        )
    return Path(training.model)


def make_local_policy(config: Config, folder: Path) -> TorchPolicy | None:
    """The policy that this process serves itself; None where others do."""
    training = config.training
    if training.policy == "openai":
        return None
    return TorchPolicy(
        folder,
        device=training.device,
        dtype=training.dtype,
        seed=training.seed,
        updating=training.updating,
        host=training.listen,
    )


async def check_servers(config: Config) -> None:
    """Raises `PolicyError` where one of [policy] urls cannot be reached, takes no weights, or
    returns nothing that can be trained on."""
    if config.training.policy != "openai":
        return
    async with _on_servers(config, Path("unused")):
        pass
    found = None
    with suppress(PolicyError):
        # What answers nothing now may be paused by a trainer that was killed, and goes on once
        # it has weights; whatever else is wrong with it, workers say when they start.
        found = await probe_policy(config.policy.urls, model=config.policy.model)
    if found is not None and not found.trains:
        why, wanted = training_support(found), "; ".join(suggested_changes(found))
        raise PolicyError(
            f"the policy at {found.url} cannot be trained: {why} ({wanted}). Nothing was started; "
            f"plimsoll gateway probe {found.url} looks again"
        )


def make_remote_policy(config: Config, directory: RunDirectory) -> OpenAIPolicy:
    """The policy on the servers of [policy] urls, which read its weights from a folder."""
    if config.training.weights is not None:
        return _on_servers(config, weight_folder_of(Path(config.training.weights), directory))
    return _on_servers(config, directory.path.absolute() / "weights")


def discard_weights(policy: OpenAIPolicy, directory: RunDirectory) -> None:
    """Removes what is left of a run that came to nothing: it was discarded, but for weights."""
    policy.discard()
    with suppress(OSError):
        (directory.path / FOLDER_FILE).unlink(missing_ok=True)
        directory.path.rmdir()


def _on_servers(config: Config, weights: Path) -> OpenAIPolicy:
    training = config.training
    return OpenAIPolicy(
        config.policy.urls,
        weights,
        server=training.server,
        model=config.policy.model,
        updating=training.updating,
        update_seconds=training.update_seconds,
    )
