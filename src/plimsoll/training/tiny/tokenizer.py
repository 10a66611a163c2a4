"""The tokenizer and the chat template of the tiny policy."""

from collections.abc import Iterable
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["END", "make_tokenizer"]

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
