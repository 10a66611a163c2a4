"""The weights of a run as Hugging Face folders, each of them whole or not there at all.

Where all runs share a place for weights, each has a folder of its own there, whose name nobody
else has; the run's directory keeps that name.
"""

import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import Version
from plimsoll.runs.directory import RunDirectory, write_whole
from plimsoll.training.models import copy_rest
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.policies.remote.protocol import Target

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FOLDER_FILE", "POINTER", "WeightFolders", "is_label", "new_label", "weight_folder_of"]

POINTER = "current.json"
"""Names the folder that is to be served."""
FOLDER_FILE = "weights.json"
"""Of a run's directory: names the run's folder among those of others."""
SHARD = "5GB"
PART = ".part"
LABELLED = re.compile(r"\d+\.\d+-[0-9a-f]{8}(\.part)?")


class Current(msgspec.Struct, frozen=True):
    """What the pointer says."""

    version: str
    label: str
    path: str


class Named(msgspec.Struct, frozen=True):
    """What the run's directory keeps."""

    folder: str


def weight_folder_of(place: Path, directory: RunDirectory) -> Path:
    """The run's folder in a place that it may share with runs of the same name."""
    file = directory.path / FOLDER_FILE
    try:
        named = msgspec.json.decode(file.read_bytes(), type=Named)
    except FileNotFoundError:
        named = Named(f"{directory.name}-{secrets.token_hex(4)}")
        write_whole(file, msgspec.json.encode(named) + b"\n", lasting=True)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{file} does not say where the run's weights are ({error}): remove it, and the run "
            f"takes another folder in {place}"
        ) from error
    return place / named.folder


def new_label(version: Version, *, given: bool) -> str:
    """A name of the version that no other run, and no other try, gives to its weights.

    `given`: whether they were given to the servers, which else have those they were started with.
    """
    known = "" if given else "first-"
    return f"{version.lineage}.{version.number}-{known}{secrets.token_hex(4)}"


def is_label(text: str) -> bool:
    """Whether it names weights that a policy has given to a server."""
    return LABELLED.fullmatch(text) is not None


class WeightFolders:
    """The folders of one run, in a folder of its own."""

    def __init__(self, root: Path) -> None:
        # Servers are told the path as it is here; a link would be followed on this host alone.
        self.root = root.absolute()

    def write(self, weights: Weights, label: str) -> Path:
        """Raises `PolicyError` where it cannot be written; what was there stays."""
        folder = self.root / label
        part = self.root / f"{label}{PART}"
        with _explained(folder):
            try:
                part.mkdir(parents=True)
                _save(weights, part)
                copy_rest(weights.base, part)
                part.rename(folder)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
        return folder

    def point(self, target: Target, version: Version) -> None:
        """Says which folder is to be served, for whoever starts or loads a server."""
        if target.folder is None:
            return
        current = Current(str(version), target.label, str(target.folder))
        part = self.root / f"{POINTER}{PART}"
        with _explained(part):
            part.write_bytes(msgspec.json.encode(current) + b"\n")
            part.replace(self.root / POINTER)

    @property
    def current(self) -> Path | None:
        """The folder that is to be served, if there is one."""
        try:
            told = msgspec.json.decode((self.root / POINTER).read_bytes(), type=Current)
        except (OSError, msgspec.MsgspecError):
            return None
        folder = self.root / Path(told.path).name
        return folder if is_label(folder.name) and folder.is_dir() else None

    def keep(self, *folders: Path | None) -> None:
        """Removes all others that a policy has written here, whole or not."""
        for folder in self.root.glob("*") if self.root.is_dir() else ():
            if LABELLED.fullmatch(folder.name) and folder not in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Removes all but what is to be served: what was before it, and what a kill left."""
        self.keep(self.current)
        with suppress(OSError):
            (self.root / f"{POINTER}{PART}").unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes all that a policy has written here, and no file of others."""
        self.keep()
        with suppress(OSError):
            for name in (POINTER, f"{POINTER}{PART}"):
                (self.root / name).unlink(missing_ok=True)
            self.root.rmdir()


@contextmanager
def _explained(path: Path) -> Generator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise PolicyError(
            f"the weights cannot be written to {path} ({error}): [training] weights is to name a "
            "folder with room for three versions of them"
        ) from error


class _Saves(Protocol):
    all_tied_weights_keys: dict[str, str]

    def state_dict(self) -> "dict[str, Tensor]": ...

    def save_pretrained(
        self, folder: Path, *, state_dict: "dict[str, Tensor]", max_shard_size: str
    ) -> None: ...


class _Configs(Protocol):
    def from_pretrained(self, path: Path, **options: object) -> object: ...


class _Models(Protocol):
    def from_config(self, config: object) -> _Saves: ...


def _save(weights: Weights, folder: Path) -> None:
    """By the names of the base's own files, and in its precision, which servers know: in a model
    of transformers several tensors may have become one, and a learner may keep more digits."""
    # Imported here: what only rolls out, or only reads a config, needs neither.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from plimsoll.training.models import quietly

    config = cast(_Configs, AutoConfig).from_pretrained(weights.base, local_files_only=True)
    with torch.device("meta"):
        model = cast(_Models, AutoModelForCausalLM).from_config(config)
    state = {
        name: weights.tensors[name].to("cpu", like.dtype)
        for name, like in model.state_dict().items()
        if name not in model.all_tied_weights_keys
    }
    with quietly():
        model.save_pretrained(folder, state_dict=state, max_shard_size=SHARD)
