"""Makes the policy of a config, and finds the folder of its initial model."""

from contextlib import suppress
from pathlib import Path

from plimsoll.config.file import Config
from plimsoll.config.training import TrainingConfig
from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.gateway.upstreams.capabilities import suggested_changes, training_support
from plimsoll.gateway.upstreams.factory import probe_policy
from plimsoll.runs.files.directory import RunDirectory
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
    """The folder of the model that training starts from."""
    if training.policy == "tiny":
        if training.model is not None:
            raise UsageError(
                'the policy "tiny" has its own model: remove [training] model, or use "torch"'
            )
        return tiny.folder()
    if training.model is None:
        raise UsageError(
            f'the policy "{training.policy}" needs a model: set its folder as [training] model'
        )
    return Path(training.model)


def make_local_policy(config: Config, folder: Path) -> TorchPolicy | None:
    """The policy that this process serves; None for a remote policy."""
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
    """Raise `PolicyError` if one of [policy] urls is unreachable, takes no weights, or returns
    nothing that can be trained on."""
    if config.training.policy != "openai":
        return
    async with _openai_policy(config, Path("unused")):
        pass
    found = None
    with suppress(PolicyError):
        # A server that does not answer may be paused by a killed trainer; it continues once it has
        # weights. Workers report any other problem when they start.
        found = await probe_policy(config.policy.urls, model=config.policy.model)
    if found is not None and not found.trains:
        why, remedy = training_support(found), "; ".join(suggested_changes(found))
        raise PolicyError(
            f"the policy at {found.url} cannot be trained: {why} ({remedy}). Nothing was started; "
            f"check again with: plimsoll gateway probe {found.url}"
        )


def make_remote_policy(config: Config, directory: RunDirectory) -> OpenAIPolicy:
    """The policy on the servers of [policy] urls, which read new weights from a folder."""
    if config.training.weights is not None:
        return _openai_policy(config, weight_folder_of(Path(config.training.weights), directory))
    return _openai_policy(config, directory.path.absolute() / "weights")


def discard_weights(policy: OpenAIPolicy, directory: RunDirectory) -> None:
    """Remove the weights of a run that failed before its first trial, and its directory."""
    policy.discard()
    with suppress(OSError):
        (directory.path / FOLDER_FILE).unlink(missing_ok=True)
        directory.path.rmdir()


def _openai_policy(config: Config, weights: Path) -> OpenAIPolicy:
    training = config.training
    return OpenAIPolicy(
        config.policy.urls,
        weights,
        server=training.server,
        model=config.policy.model,
        updating=training.updating,
        update_seconds=training.update_seconds,
    )
