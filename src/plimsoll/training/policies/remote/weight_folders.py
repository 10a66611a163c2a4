"""The weights of a run as Hugging Face folders, each complete or absent.

Runs may share a parent folder for weights. Each then has a subfolder with a unique name, which its
run directory records.
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
from plimsoll.runs.files.directory import RunDirectory, write_whole
from plimsoll.training.models import copy_rest
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.policies.remote.protocol import Target

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FOLDER_FILE", "POINTER", "WeightFolders", "is_label", "new_label", "weight_folder_of"]

POINTER = "current.json"
"""The file that names the folder to serve."""
FOLDER_FILE = "weights.json"
"""The file of the run directory that names the run's own folder."""
SHARD = "5GB"
PART = ".part"
LABELLED = re.compile(r"\d+\.\d+-[0-9a-f]{8}(\.part)?")


class Current(msgspec.Struct, frozen=True):
    """The content of the pointer file."""

    version: str
    label: str
    path: str


class Named(msgspec.Struct, frozen=True):
    """The content of the file in the run directory."""

    folder: str


def weight_folder_of(parent: Path, directory: RunDirectory) -> Path:
    """The run's own folder in a parent that other runs may share."""
    file = directory.path / FOLDER_FILE
    try:
        named = msgspec.json.decode(file.read_bytes(), type=Named)
    except FileNotFoundError:
        named = Named(f"{directory.name}-{secrets.token_hex(4)}")
        write_whole(file, msgspec.json.encode(named) + b"\n", lasting=True)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{file} does not name the folder of the run's weights ({error}): remove it, and the "
            f"run uses a new folder in {parent}"
        ) from error
    return parent / named.folder


def new_label(version: Version, *, given: bool) -> str:
    """A label of a version, unique over all runs and tries.

    `given`: whether the weights were given to the servers; else they have their initial weights.
    """
    prefix = "" if given else "first-"
    return f"{version.lineage}.{version.number}-{prefix}{secrets.token_hex(4)}"


def is_label(text: str) -> bool:
    """Whether a text is the label of weights that a policy gave to a server."""
    return LABELLED.fullmatch(text) is not None


class WeightFolders:
    """The weight folders of one run, in its own folder."""

    def __init__(self, root: Path) -> None:
        # Servers get this path unresolved: a link may resolve differently on their hosts.
        self.root = root.absolute()

    def write(self, weights: Weights, label: str) -> Path:
        """Write a folder. Raises `PolicyError` if that fails; existing folders stay."""
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
        """Write the pointer to the folder to serve, for those who start or update servers."""
        if target.folder is None:
            return
        current = Current(str(version), target.label, str(target.folder))
        part = self.root / f"{POINTER}{PART}"
        with _explained(part):
            part.write_bytes(msgspec.json.encode(current) + b"\n")
            part.replace(self.root / POINTER)

    @property
    def current(self) -> Path | None:
        """The folder to serve, if there is one."""
        try:
            pointer = msgspec.json.decode((self.root / POINTER).read_bytes(), type=Current)
        except (OSError, msgspec.MsgspecError):
            return None
        folder = self.root / Path(pointer.path).name
        return folder if is_label(folder.name) and folder.is_dir() else None

    def keep(self, *folders: Path | None) -> None:
        """Remove all other folders of weights here, complete or not."""
        for folder in self.root.glob("*") if self.root.is_dir() else ():
            if LABELLED.fullmatch(folder.name) and folder not in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove all folders but the one to serve: older ones and leftovers of a killed run."""
        self.keep(self.current)
        with suppress(OSError):
            (self.root / f"{POINTER}{PART}").unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove all files of this policy, and no others."""
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
            f"the weights cannot be written to {path} ({error}): set [training] weights to a "
            "folder with space for three versions of them"
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
    """Save with the tensor names and the precision of the base folder, as servers expect them:
    transformers may fuse tensors, and the learner has float32 weights."""
    # Imported here: a run without training needs neither.
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
