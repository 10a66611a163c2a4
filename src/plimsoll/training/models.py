"""Loads what a Hugging Face folder holds, and says in one sentence why it cannot.

What transformers leaves untyped stays in this file.

The files of a Hugging Face folder beside its weights.
"""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from plimsoll.core.errors import TrainingError, UsageError

__all__ = [
    "copy_rest",
    "find_device",
    "find_dtype",
    "is_out_of_memory",
    "load_model",
    "load_tokenizer",
    "quietly",
    "too_large",
]

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Any of these files makes a tokenizer."""

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says where it has no error of its own for it."""


class _Models(Protocol):
    def from_pretrained(
        self, path: Path, **options: object
    ) -> tuple[PreTrainedModel, dict[str, Any]]: ...


class _Tokenizers(Protocol):
    def from_pretrained(self, path: Path, **options: object) -> PreTrainedTokenizerBase: ...


class _Templated(Protocol):
    chat_template: object


def find_device(wanted: str) -> torch.device:
    """The device by its name; `auto` is the first GPU where there is one."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UsageError(
            f'[training] device = "{wanted}" is none that torch knows: give cpu, cuda, cuda:1 or '
            "auto"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise UsageError(
                f'[training] device = "{wanted}" is not there: torch sees {count} GPUs; '
                "install a torch that is built for yours, or give auto, which takes what there is"
            )
    return device


def find_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """What is computed in; `auto` is bfloat16 on a GPU that has it, else float32."""
    if wanted != "auto":
        return torch.bfloat16 if wanted == "bfloat16" else torch.float32
    has = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has else torch.float32


def load_model(path: Path, *, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """The causal language model of a folder, ready to compute."""
    _check_folder(path)
    place = find_device(device)
    with _explained(path), quietly():
        model, found = cast(_Models, AutoModelForCausalLM).from_pretrained(
            path,
            dtype=find_dtype(dtype, place),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        _check_loaded(path, found)
        cast(torch.nn.Module, model).to(place)
    return model.eval()


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, which renders conversations."""
    _check_folder(path)
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise UsageError(f"{path} has no tokenizer: one of {', '.join(TOKENIZERS)} is to be there")
    with _explained(path), quietly():
        tokenizer = cast(_Tokenizers, AutoTokenizer).from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    if not cast(_Templated, tokenizer).chat_template:
        raise UsageError(
            f"the tokenizer of {path} has no chat template, so no conversation can be rendered for"
            " it: put one into chat_template.jinja there, or take the model's instruct variant"
        )
    return tokenizer


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or here."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)
    )


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {path}: [training] model and reference are folders of models, and "
            f"nothing is downloaded; `hf download ORGANIZATION/NAME --local-dir {path}` makes one"
        )
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{path} is no model: it has no config.json. It is to hold what Hugging Face's"
            " save_pretrained writes: config.json, model.safetensors and the tokenizer's files"
        )


def _check_loaded(path: Path, found: dict[str, Any]) -> None:
    """Weights that are not there would be made up at random."""
    missing = sorted(map(str, found.get("missing_keys") or ()))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"the weights in {path} lack {missing[0]}{more}: the model is not whole")
    if found.get("mismatched_keys"):
        raise UsageError(f"the weights in {path} are not of the shapes that config.json says")


@contextmanager
def quietly() -> Generator[None]:
    """Without transformers' progress bars and tables of weights."""
    shown = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Turns what a loader raises for files that it cannot use into a sentence."""
    try:
        yield
    except (SafetensorError, json.JSONDecodeError) as error:
        raise UsageError(f"a file in {path} is damaged ({error}): copy it again") from error
    except MemoryError as error:
        raise too_large(path) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        if is_out_of_memory(error):
            raise too_large(path) from error
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"{path} cannot be loaded: {first}") from error


def too_large(path: Path) -> TrainingError:
    """What is raised where the model of a folder does not fit into memory."""
    return TrainingError(
        f"out of memory while loading {path}: take a smaller model, bfloat16, or another device"
    )


_COPIED = (".json", ".txt", ".jinja", ".model", ".py")
"""Tokenizer, template, defaults of sampling and a model's own code are in such files."""
_WRITTEN = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
"""They come with the weights."""


def copy_rest(base: Path, folder: Path) -> None:
    """Makes a folder that weights and config were saved to whole, from the one they began as."""
    for path in base.iterdir():
        if path.suffix in _COPIED and path.name not in _WRITTEN and path.is_file():
            shutil.copyfile(path, folder / path.name)
