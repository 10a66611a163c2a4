"""The tokenizer of the tiny policy, and how a conversation is laid out in its tokens."""

from collections.abc import Iterable
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["END", "make_tokenizer"]

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
FENCES = ("```bash\n", "\n```")
"""One token each: they begin and end nearly every answer."""
WORDS = Regex(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]+")
"""Words, numbers, and what stands between them. A word is the same token wherever it stands, so
that copying it is all there is to learn about it."""
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
"""Leaves out the system message and the tools, which are the same in every conversation. Answers
stand in it as they were sampled, so that each prompt begins with all that was said before."""


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """A tokenizer whose words are those of `texts`; anything else it spells in bytes."""
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
