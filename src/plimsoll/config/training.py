"""The tables of the config that say how a policy is trained: [training], [evaluation], [metrics].

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
    """How the policy is trained. Without `policy` a run only rolls out."""

    policy: Literal["tiny", "torch", "openai"] | None = None
    """`tiny` comes with Plimsoll; `torch` is a Hugging Face causal LM that is served by the
    trainer itself; `openai` is served by the servers of [policy] urls, which take new weights."""
    model: StrictStr | None = None
    """The folder of the model: weights, config, tokenizer. `tiny` has its own."""
    mode: Literal["sync", "async"] = "async"
    """`sync` generates and trains in turn: depth and max_staleness are 0. `async` does both at
    once, as far ahead as [run] depth and max_staleness allow."""
    device: StrictStr = "auto"
    """cpu, cuda, cuda:1 and so on; `auto` takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the model computes in; `auto`: bfloat16 on a GPU that has it, else float32."""
    seed: StrictInt = 0
    """What sampling and the trainer's own choices depend on."""

    algorithm: Literal["grpo", "gspo", "ppo"] = "grpo"
    """grpo: a ratio for each token; gspo: one for each sequence; ppo: with a critic."""
    normalize: StrictBool = True
    """Whether advantages are divided by the deviation of their group; with ppo, by that of all
    tokens of the batch, less their mean."""
    averaging: Literal["token", "sequence"] = "token"
    """The loss is a mean over all tokens of a batch, or over the means of its sequences."""
    clip_low: StrictFloat = Field(default=0.2, gt=0)
    """How far below 1 the ratio of new to old probabilities counts. In the first update of a step
    it is 1, unless `correction` is `none`: so with one update nothing is clipped."""
    clip_high: StrictFloat = Field(default=0.2, gt=0)
    """How far above 1 it counts."""
    kl: StrictFloat = Field(default=0.0, ge=0)
    """How much distance from the reference costs; 0 needs no reference."""
    reference: StrictStr | None = None
    """The folder of the reference; the model as it was at the start where it is left out."""
    entropy: StrictFloat = Field(default=0.0, ge=0)
    """How much entropy is rewarded."""
    correction: Literal["none", "truncated"] = "truncated"
    """How samples of older weights are corrected: `truncated` weighs each token by how much
    likelier the weights at the start of the step make it than those that generated it, and clips
    the ratio to the former; `none` clips the ratio to the latter."""
    correction_cap: StrictFloat = Field(default=2.0, gt=0)
    """The most that a token may weigh."""
    updates: StrictInt = Field(default=1, ge=1)
    """Optimizer steps that are made of one batch, each of another part of it."""

    learning_rate: StrictFloat = Field(default=1e-6, gt=0)
    """Of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes from its value to `final_rate` of it over the run's steps."""
    warmup_steps: StrictInt = Field(default=0, ge=0)
    """Steps over which the learning rate rises to its value; the first is never 0."""
    final_rate: StrictFloat = Field(default=0.1, ge=0, le=1)
    """The share of the learning rate that is left at the end of `linear` and `cosine`."""
    weight_decay: StrictFloat = Field(default=0.0, ge=0)
    """Of AdamW."""
    clip_gradient: StrictFloat = Field(default=1.0, gt=0)
    """The largest norm of a gradient."""
    micro_tokens: StrictInt = Field(default=8192, ge=1)
    """Tokens, padding included, that go through the model at once; a longer sample goes alone."""
    recompute: StrictBool = False
    """Whether layers keep nothing for the gradient but their inputs, and run twice for it: a
    third more time, and a small part of the memory."""
    bad_steps: StrictInt = Field(default=3, ge=1)
    """After so many steps in a row without a finite loss and gradient the run stops."""

    critic_rate: StrictFloat = Field(default=1e-5, gt=0)
    """The learning rate of the critic (ppo)."""
    discount: StrictFloat = Field(default=1.0, ge=0, le=1)
    """γ (ppo)."""
    trace: StrictFloat = Field(default=0.95, ge=0, le=1)
    """λ (ppo)."""
    value_clip: StrictFloat = Field(default=0.2, gt=0)
    """How far a value may move from what it was (ppo)."""

    checkpoint_every: StrictInt = Field(default=10, ge=1)
    """Steps between two checkpoints; the last step has one in any case."""
    keep: StrictInt = Field(default=2, ge=2)
    """Checkpoints that are kept."""
    updating: Literal["interrupt", "drain"] = "interrupt"
    """What becomes of answers under way when the weights change: they go on with the new ones
    from where they are, or come to their end first."""
    server: Literal["vllm", "sglang", "path"] = "vllm"
    """How the servers of `openai` take weights: by the endpoints of vLLM or SGLang, or `path`:
    whoever runs them loads `weights` and says so."""
    weights: StrictStr | None = None
    """The folder for weights of `openai`, which its servers can read; in the run's directory
    where it is left out."""
    update_seconds: StrictFloat = Field(default=600.0, gt=0)
    """How long every replica may take to confirm new weights."""
    listen: StrictStr = "127.0.0.1"
    """Where `tiny` and `torch` are served; workers on other hosts need an address that they
    can reach."""

    @property
    def clips(self) -> bool:
        """Whether any ratio can be other than 1."""
        return self.updates > 1 or self.correction == "none"


class EvaluationConfig(Table):
    """What the policy is measured on beside its training, or beside rolling out alone."""

    tasks: StrictStr | None = None
    """A folder of tasks that are not trained on. Without it nothing is evaluated."""
    every: StrictInt = Field(default=10, ge=0)
    """Steps between two evaluations; 0: only before the first step and after the last."""
    attempts: StrictInt = Field(default=1, ge=1)
    """Trials of each task."""


class MetricsConfig(Table):
    """Where the figures of each step go, besides the run's own `metrics.jsonl`."""

    tensorboard: StrictBool = False
    """Event files in the run's directory."""
    wandb: StrictStr | None = None
    """The project at Weights & Biases."""
    trackio: StrictStr | None = None
    """The project of trackio."""
