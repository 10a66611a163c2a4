"""Tables about training: [training], [evaluation] and [metrics].

[training]
policy = "torch"
model = "models/qwen3-0.6b"
mode = "async"
learning_rate = 1e-6

[evaluation]
tasks = "heldout"
every = 10

[metrics]
tensorboard = true
"""

from typing import Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from plimsoll.config.table import Table

__all__ = ["EvaluationConfig", "MetricsConfig", "TrainingConfig"]


class TrainingConfig(Table):
    """Training of the policy. Without `policy` a run only rolls out."""

    policy: Literal["tiny", "torch", "openai"] | None = None
    """`tiny` comes with Plimsoll; `torch` is a Hugging Face causal LM served by the trainer itself;
    `openai` runs on the servers of [policy] urls, which take new weights."""
    model: StrictStr | None = None
    """The folder of the model: weights, config, tokenizer. `tiny` has its own."""
    mode: Literal["sync", "async"] = "async"
    """`sync` alternates generation and training: depth and max_staleness are 0. `async` overlaps
    them, as far ahead as [run] depth and max_staleness allow."""
    device: StrictStr = "auto"
    """cpu, cuda, cuda:1 and so on; `auto` uses a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The compute dtype; `auto`: bfloat16 on a GPU that supports it, else float32."""
    seed: StrictInt = 0
    """The seed of sampling and of the trainer's random choices."""

    algorithm: Literal["grpo", "gspo", "ppo"] = "grpo"
    """grpo: a ratio for each token; gspo: one for each sequence; ppo: with a critic."""
    normalize: StrictBool = True
    """Whether advantages are divided by the standard deviation of their group; with ppo, whitened
    over all tokens of the batch."""
    averaging: Literal["token", "sequence"] = "token"
    """The loss is the mean over all tokens of a batch, or over the means of its sequences."""
    clip_low: StrictFloat = Field(default=0.2, gt=0)
    """The clip of the ratio of new to old probabilities below 1. In the first update of a step the
    ratio is 1, unless `correction` is `none`: with one update nothing is clipped."""
    clip_high: StrictFloat = Field(default=0.2, gt=0)
    """The clip of the ratio above 1."""
    kl: StrictFloat = Field(default=0.0, ge=0)
    """The coefficient of the KL distance from the reference; 0 needs no reference."""
    reference: StrictStr | None = None
    """The folder of the reference model; by default, the initial model."""
    entropy: StrictFloat = Field(default=0.0, ge=0)
    """The coefficient of the entropy bonus."""
    correction: Literal["none", "truncated"] = "truncated"
    """Correction of samples from older weights. `truncated` weights each token by the probability
    ratio of the weights at the start of the step to those that generated it, and clips the ratio
    to the former; `none` clips the ratio to the latter."""
    correction_cap: StrictFloat = Field(default=2.0, gt=0)
    """The largest weight of a token."""
    updates: StrictInt = Field(default=1, ge=1)
    """Optimizer updates for each batch, each on another part of it."""

    learning_rate: StrictFloat = Field(default=1e-6, gt=0)
    """The learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The schedule of the learning rate, down to the share `final_rate` over the run's steps."""
    warmup_steps: StrictInt = Field(default=0, ge=0)
    """Steps over which the learning rate rises to its value; the first is never 0."""
    final_rate: StrictFloat = Field(default=0.1, ge=0, le=1)
    """The final share of the learning rate with `linear` and `cosine`."""
    weight_decay: StrictFloat = Field(default=0.0, ge=0)
    """The weight decay of AdamW."""
    clip_gradient: StrictFloat = Field(default=1.0, gt=0)
    """The largest gradient norm."""
    micro_tokens: StrictInt = Field(default=8192, ge=1)
    """The limit of tokens in a micro-batch, padding included; a longer sample gets its own."""
    recompute: StrictBool = False
    """Activation checkpointing: layers keep only their inputs and run twice. A third more time, a
    small part of the memory."""
    bad_steps: StrictInt = Field(default=3, ge=1)
    """The run stops after this many consecutive steps without a finite loss and gradient."""

    critic_rate: StrictFloat = Field(default=1e-5, gt=0)
    """The learning rate of the critic (ppo)."""
    discount: StrictFloat = Field(default=1.0, ge=0, le=1)
    """γ (ppo)."""
    trace: StrictFloat = Field(default=0.95, ge=0, le=1)
    """λ (ppo)."""
    value_clip: StrictFloat = Field(default=0.2, gt=0)
    """The clip of the change of a value prediction (ppo)."""

    checkpoint_every: StrictInt = Field(default=10, ge=1)
    """Steps between two checkpoints; the last step always has one."""
    keep: StrictInt = Field(default=2, ge=2)
    """The number of checkpoints to keep."""
    updating: Literal["interrupt", "drain"] = "interrupt"
    """Answers in flight when the weights change: `interrupt` continues them with the new weights,
    `drain` lets them finish first."""
    server: Literal["vllm", "sglang", "path"] = "vllm"
    """The way that servers of `openai` take weights: the endpoints of vLLM or SGLang, or `path`:
    their operator loads the folder `weights`."""
    weights: StrictStr | None = None
    """The folder for weights of `openai`, readable by its servers; by default, in the run
    directory."""
    update_seconds: StrictFloat = Field(default=600.0, gt=0)
    """The time limit for every replica to confirm new weights."""
    listen: StrictStr = "127.0.0.1"
    """The address that serves `tiny` and `torch`; workers on other hosts must be able to reach
    it."""

    @property
    def clips(self) -> bool:
        """Whether ratios can differ from 1."""
        return self.updates > 1 or self.correction == "none"


class EvaluationConfig(Table):
    """Held-out evaluations during a run."""

    tasks: StrictStr | None = None
    """The folder of held-out tasks. Without it there are no evaluations."""
    every: StrictInt = Field(default=10, ge=0)
    """Steps between two evaluations; 0: only before the first step and after the last."""
    attempts: StrictInt = Field(default=1, ge=1)
    """Trials of each task."""


class MetricsConfig(Table):
    """Metrics sinks, besides `steps.jsonl` in the run directory."""

    tensorboard: StrictBool = False
    """Write event files into the run directory."""
    wandb: StrictStr | None = None
    """The Weights & Biases project."""
    trackio: StrictStr | None = None
    """The trackio project."""
