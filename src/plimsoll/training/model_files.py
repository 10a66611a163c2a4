"""The files of a Hugging Face folder beside its weights."""

import shutil
from pathlib import Path

__all__ = ["copy_rest"]

_COPIED = (".json", ".txt", ".jinja", ".model", ".py")
"""Tokenizer, template, defaults of sampling and a model's own code are in such files."""
_WRITTEN = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
"""They come with the weights."""


def copy_rest(base: Path, folder: Path) -> None:
    """Makes a folder that weights and config were saved to whole, from the one they began as."""
    for path in base.iterdir():
        if path.suffix in _COPIED and path.name not in _WRITTEN and path.is_file():
            shutil.copyfile(path, folder / path.name)
