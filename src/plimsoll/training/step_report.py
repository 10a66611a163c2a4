"""What is known of a step of the learner, in figures. Imports no torch: others read it too."""

import msgspec

__all__ = ["StepReport"]


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step in figures. One is None where no token gave it, or where it is not finite."""

    loss: float | None = None
    grad_norm: float | None = None
    """Before it was clipped; the largest where a step has several updates."""
    kl: float | None = None
    """How far the weights at the start of the step are from those that generated."""
    reference_kl: float | None = None
    entropy: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clipped: float | None = None
    """The share of tokens whose gradient the clip takes away."""
    weight_mean: float | None = None
    truncated: float | None = None
    """The share of tokens that would weigh more than the cap."""
    value_loss: float | None = None
    tokens: int
    """Those that are trained on; others are not counted."""
    samples: int
    learning_rate: float
    micro_batches: int = 0
    """On each rank."""
    left_out: int = 0
    """Updates whose loss or gradient was not finite."""
    seconds: float
    skipped: str = ""
    """Why the weights are as they were."""
