"""Models and tokenizers of Hugging Face folders: loaded, with one sentence for each failure.

Untyped calls of transformers stay in this file.
"""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
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
"""A folder with any of these files has a tokenizer."""

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of torch for out-of-memory errors without an own exception type."""


class _Models(Protocol):
    def from_pretrained(
        self, path: Path, **options: object
    ) -> tuple[PreTrainedModel, dict[str, Any]]: ...


class _Tokenizers(Protocol):
    def from_pretrained(self, path: Path, **options: object) -> PreTrainedTokenizerBase: ...


class _Templated(Protocol):
    chat_template: object


def find_device(name: str) -> torch.device:
    """The device of a name; `auto` is the first GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f'[training] device = "{name}" is not a torch device: use cpu, cuda, cuda:1 or auto'
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise UsageError(
                f'[training] device = "{name}" is not available: torch sees {count} GPUs; '
                "install a torch that is built for your GPU, or use auto"
            )
    return device


def find_dtype(name: str, device: torch.device) -> torch.dtype:
    """The compute dtype; `auto` is bfloat16 on a GPU that supports it, else float32."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    has = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has else torch.float32


def load_model(path: Path, *, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """Load the causal language model of a folder, in eval mode."""
    _check_folder(path)
    torch_device = find_device(device)
    with _explained(path), quietly():
        model, found = cast(_Models, AutoModelForCausalLM).from_pretrained(
            path,
            dtype=find_dtype(dtype, torch_device),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        _check_loaded(path, found)
        cast(torch.nn.Module, model).to(torch_device)
    return model.eval()


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder. It must have a chat template."""
    _check_folder(path)
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise UsageError(f"{path} has no tokenizer: it needs one of {', '.join(TOKENIZERS)}")
    with _explained(path), quietly():
        tokenizer = cast(_Tokenizers, AutoTokenizer).from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    if not cast(_Templated, tokenizer).chat_template:
        raise UsageError(
            f"the tokenizer of {path} has no chat template, so it cannot render conversations:"
            " add chat_template.jinja to the folder, or use the model's instruct variant"
        )
    return tokenizer


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that GPU or host memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
    )


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {path}: [training] model and reference are folders of models, and "
            f"nothing is downloaded; create it with `hf download ORGANIZATION/NAME --local-dir "
            f"{path}`"
        )
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{path} is not a model: it has no config.json. It needs the files that Hugging Face's"
            " save_pretrained writes: config.json, model.safetensors and the tokenizer's files"
        )


def _check_loaded(path: Path, found: dict[str, Any]) -> None:
    """Refuse missing weights: transformers would initialize them at random."""
    missing = sorted(map(str, found.get("missing_keys") or ()))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"the weights in {path} lack {missing[0]}{more}: the model is incomplete")
    if found.get("mismatched_keys"):
        raise UsageError(f"the weights in {path} do not have the shapes that config.json gives")


@contextmanager
def quietly() -> Generator[None]:
    """Silence the progress bars and warnings of transformers."""
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
    """Turn a loader's error about unusable files into one sentence."""
    try:
        yield
    except (SafetensorError, json.JSONDecodeError) as error:
        raise UsageError(f"a file in {path} is damaged ({error}): copy it again") from error
    except UnpicklingError as error:
        raise UsageError(
            f"{path} cannot be loaded: its weights are pickled with code, which is not executed; "
            "use a model with model.safetensors"
        ) from error
    except MemoryError as error:
        raise too_large(path) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        if is_out_of_memory(error):
            raise too_large(path) from error
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"{path} cannot be loaded: {first}") from error


def too_large(path: Path) -> TrainingError:
    """The error for a model that does not fit into memory."""
    return TrainingError(
        f"out of memory while loading {path}: use a smaller model, bfloat16, or another device"
    )


_COPIED = (".json", ".txt", ".jinja", ".model", ".py")
"""Endings of the files with tokenizer, template, sampling defaults and model code."""
_WRITTEN = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Files that are written together with the weights."""


def copy_rest(base: Path, folder: Path) -> None:
    """Copy the files beside weights and config from the base model into a saved folder."""
    for path in base.iterdir():
        if path.suffix in _COPIED and path.name not in _WRITTEN and path.is_file():
            shutil.copyfile(path, folder / path.name)
