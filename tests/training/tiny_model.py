"""Small models with random weights in Hugging Face folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["CHAT", "CHAT_WITH_TOOLS", "END", "make_model"]

PAD, START, END = "<|pad|>", "<|start|>", "<|end|>"

_TURN = (
    "{{ '<|start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for call in m.get('tool_calls') or [] %}"
    '{{ \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}</tool_call>' }}"
    "{% endfor %}{{ '<|end|>\n' }}"
)
CHAT = (
    "{% for m in messages %}"
    "{% if m['role'] not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('no such role: ' + m['role']) }}{% endif %}"
    + _TURN
    + "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
CHAT_WITH_TOOLS = (
    "{% if tools %}{{ '<|start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}{{ ' Call with <tool_call></tool_call>.<|end|>\n' }}{% endif %}" + CHAT
)


def make_model(
    folder: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    context: int = 2048,
    alphabet: Literal["ascii", "bytes"] = "ascii",
    template: str | None = CHAT,
    seed: int = 0,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Write a Llama with random weights.

    A token is a letter; with `bytes` it is a byte of UTF-8, so that an answer may split a letter.
    `generation` is written to generation_config.json.
    """
    tokenizer = _tokenizer(alphabet, template)
    tokenizer.save_pretrained(folder)
    ends = cast(int, tokenizer.convert_tokens_to_ids(END))
    pads = cast(int, tokenizer.convert_tokens_to_ids(PAD))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=pads,
        initializer_range=0.2,  # so that answers depend on the prompt
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=pads, do_sample=True, **(generation or {})
    )
    model.save_pretrained(folder)
    return folder


def _tokenizer(
    alphabet: Literal["ascii", "bytes"], template: str | None
) -> PreTrainedTokenizerFast:
    if alphabet == "bytes":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        letters = ["<unk>", "\n", "\t", *map(chr, range(32, 127))]
    vocab = {letter: index for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=letters[0]))
    if alphabet == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    made.add_special_tokens({"additional_special_tokens": [START]})
    made.add_tokens(["<tool_call>", "</tool_call>"])
    made.chat_template = template
    return made
