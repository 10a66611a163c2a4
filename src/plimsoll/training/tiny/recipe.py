"""The recipe of the tiny policy: supervised training on conversations of a careless agent, about
instances outside the demo. It learns the correct commands and the mistakes: sampled, it solves
about a third of the tasks.

The same machine makes the same weights; another one may round differently.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from plimsoll.training.learner.optimizer import Optimizer, Schedule
from plimsoll.training.learner.scorer import backbone_of, head_of
from plimsoll.training.learner.torch_calls import backward
from plimsoll.training.models import quietly
from plimsoll.training.tiny.conversations import Examples, make_conversation, make_examples
from plimsoll.training.tiny.instances import Instance, other_instances

__all__ = ["END", "make"]

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
FENCES = ("```bash\n", "\n```")
"""One token each: nearly every answer begins and ends with them."""
WORDS = Regex(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+")
"""Words, numbers, and the characters between them. A word is the same token everywhere, so that
the model only has to learn to copy it."""
SIZE = 640

TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    f"{ASSISTANT}{{%- generation -%}}{{{{ message.content }}}}{END}{{%- endgeneration -%}}"
    "{%- elif message.role != 'system' -%}"
    f"{USER}{{{{ message.content | trim }}}}{END}"
    "{%- endif -%}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{ASSISTANT}{{%- endif -%}}"
)
"""Omits the system message and the tools, which are the same in every conversation. Answers are
rendered as sampled, so that each prompt begins with the whole conversation before it."""


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """A tokenizer with the words of `texts`; it encodes other words as bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=SIZE - len(FENCES),
            special_tokens=[PAD, USER, ASSISTANT, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    cast(Any, tokenizer).add_tokens([AddedToken(fence, normalized=False) for fence in FENCES])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return cast(PreTrainedTokenizerBase, fast)


BATCHES = 400
BATCH = 32
RATE = 6e-3
MAX_ANSWER_TOKENS = 64


def make(folder: Path, *, seed: int = 0, say: Callable[[str], None]) -> list[float]:
    """Write the policy as a Hugging Face folder. Returns the loss of each batch."""
    random = Random(seed)
    tokenizer = make_tokenizer(texts(other_instances(random, 2000), random))
    with reproducible(seed):
        model = LlamaForCausalLM(architecture(tokenizer))
        say(f"{model.num_parameters():,} parameters, {BATCHES} batches of {BATCH} conversations")
        losses: list[float] = []
        for loss in learn(model, tokenizer, random):
            losses.append(loss)
            if len(losses) % 50 == 0:
                say(f"batch {len(losses)}  loss {loss:.3f}")
    save(folder, model, tokenizer)
    say(f"written to {folder}")
    return losses


def texts(instances: Iterable[Instance], random: Random) -> Iterator[str]:
    """All texts of conversations about instances."""
    for instance in instances:
        for turn in make_conversation(instance, random):
            yield from (turn.prompt, turn.answer)


def architecture(tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        **ends(tokenizer),
    )


def ends(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}


@contextmanager
def reproducible(seed: int) -> Generator[None]:
    """Use one thread: partial sums of several threads round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with cast(Any, torch.random).fork_rng(devices=[]):
            cast(Any, torch).manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def learn(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, random: Random
) -> Iterator[float]:
    """Train the model; yields the loss of each batch."""
    optimizer = Optimizer(model, rate=RATE, weight_decay=0.0, clip_gradient=1.0)
    share = Schedule("cosine", warmup=20, final=0.1, steps=BATCHES)
    for number in range(1, BATCHES + 1):
        loss = loss_of(model, make_examples(tokenizer, other_instances(random, BATCH), random))
        backward(loss)
        optimizer.clip()
        optimizer.step(share(number))
        yield loss.item()


def loss_of(model: LlamaForCausalLM, batch: Examples) -> Tensor:
    """The mean loss over all tokens of answers."""
    hidden = backbone_of(model)(batch.ids)[:, :-1]
    chosen = batch.answers[:, 1:]
    logits = head_of(model)(hidden[chosen])
    return cross_entropy(logits, batch.ids[:, 1:][chosen])


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, max_new_tokens=MAX_ANSWER_TOKENS, **ends(tokenizer)
    )
    with quietly():
        cast(Any, model).half().save_pretrained(folder)
    cast(Any, tokenizer).save_pretrained(folder)
