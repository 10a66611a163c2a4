"""AdamW with a clipped gradient, whose state outlives the process."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plimsoll.core.errors import TrainingError
from plimsoll.training.doors import step
from plimsoll.training.models import is_out_of_memory
from plimsoll.training.parallel import for_first, shared_like, whole

__all__ = ["Optimizer"]


class Optimizer:
    """Changes the weights of a module."""

    def __init__(
        self, module: nn.Module, *, rate: float, weight_decay: float, clip_gradient: float
    ) -> None:
        self._rate = rate
        self._clip = clip_gradient
        self._parameters = {
            name: each for name, each in module.named_parameters() if each.requires_grad
        }
        # Scales and offsets have no size that could be too large.
        wide = [each for each in self._parameters.values() if each.dim() > 1]
        narrow = [each for each in self._parameters.values() if each.dim() <= 1]
        groups = [
            {"params": wide, "weight_decay": weight_decay},
            {"params": narrow, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW([each for each in groups if each["params"]], lr=rate)

    def clear(self) -> None:
        """Forgets the gradient."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """The norm of the gradient, which is then no larger than allowed."""
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._clip)
        return float(whole(norm))

    def step(self, share: float) -> None:
        """One step with a share of the learning rate."""
        for group in self._adam.param_groups:
            group["lr"] = self._rate * share
        try:
            step(self._adam)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                "out of memory: the optimizer keeps two numbers for each weight, and they do not "
                "fit beside the model. Take a smaller one, or train on more GPUs with torchrun"
            ) from error
        self.clear()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """By the parameters' names, whole on the first rank. Every rank has to ask."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._parameters.items():
            state: Mapping[str, Tensor] = self._adam.state[parameter]
            found[name] = {key: for_first(value) for key, value in state.items()}
        return found

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes on from what `state` gave, on however many ranks."""
        for name, parameter in self._parameters.items():
            # Beside moments, which are laid out as the parameter, there is a count of steps.
            self._adam.state[parameter] = {
                key: shared_like(value.to(parameter.device), parameter) if value.dim() else value
                for key, value in state[name].items()
            }
