"""The policy that a config asks for, and the folder its first weights are in."""

from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.runs.config import Config
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.training_config import TrainingConfig
from plimsoll.training import tiny
from plimsoll.training.policies.openai import OpenAIPolicy
from plimsoll.training.policies.protocol import Policy
from plimsoll.training.policies.torch import TorchPolicy

__all__ = ["make_served", "make_serving", "model_folder"]


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


def make_serving(config: Config, folder: Path) -> TorchPolicy | None:
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


def make_served(config: Config, directory: RunDirectory) -> Policy:
    """The policy on the servers of [policy] urls, which read its weights from a folder."""
    training = config.training
    weights = Path(training.weights or directory.path.absolute() / "weights")
    return OpenAIPolicy(
        config.policy.urls,
        weights if training.weights is None else weights / directory.name,
        server=training.server,
        model=config.policy.model,
        updating=training.updating,
        update_seconds=training.update_seconds,
    )
