"""Weight folders: complete or absent, one for each run, cleaned up."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from openai_parts import V, replicas, running_policy, weights_of
from safetensors import safe_open
from tiny_model import make_model
from transformers import AutoModelForCausalLM, MixtralConfig
from weight_stand_in import StandIn, read_number

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.testing.waiting import until
from plimsoll.training.models import load_model, load_tokenizer
from plimsoll.training.policies.protocol import Weights
from plimsoll.training.policies.remote.protocol import Target
from plimsoll.training.policies.remote.weight_folders import (
    FOLDER_FILE,
    WeightFolders,
    weight_folder_of,
)


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:  # pyright: ignore
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_a_folder_is_a_complete_model(base: Path, tmp_path: Path) -> None:
    model: Any = load_model(base, device="cpu")
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)
    folder = WeightFolders(tmp_path).write(Weights(dict(model.state_dict()), base), "0.1-00000000")
    assert load_tokenizer(folder).chat_template
    loaded: Any = load_model(folder, device="cpu")
    assert torch.equal(loaded.model.norm.weight, model.model.norm.weight)
    assert {p.name for p in folder.iterdir()} == {p.name for p in base.iterdir()}
    assert tensors_in(folder).keys() == tensors_in(base).keys()


def test_weights_are_written_in_the_precision_of_the_base(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", layers=1, hidden=16, heads=2)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    folder = WeightFolders(tmp_path).write(weights_of(base, 3), "0.1-00000000")
    assert {tensor.dtype for tensor in tensors_in(folder).values()} == {torch.bfloat16}
    assert read_number(str(folder)) == 3


def test_tied_weights_are_written_once_even_as_two_tensors(base: Path, tmp_path: Path) -> None:
    model: Any = load_model(base, device="cpu")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert "lm_head.weight" in state
    folder = WeightFolders(tmp_path).write(Weights(state, base), "0.1-00000000")
    assert tensors_in(folder).keys() == tensors_in(base).keys()


def test_weights_have_the_names_of_the_base_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    model: Any = load_model(base, device="cpu")
    assert model.state_dict().keys() != tensors_in(base).keys(), "transformers fuses the experts"
    folder = WeightFolders(tmp_path).write(Weights(dict(model.state_dict()), base), "0.1-00000000")
    before, after = tensors_in(base), tensors_in(folder)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def names_in(folder: Path) -> set[str]:
    """The names in a folder, without the unique suffixes of versions."""
    return {path.name.partition("-")[0] for path in folder.iterdir()}


async def test_the_last_two_folders_are_kept_and_nothing_else_is_touched(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "0.7-deadbeef.part").mkdir()
    async with running_policy(replicas("vllm"), tmp_path) as policy:
        for number in range(1, 5):
            await policy.publish(weights_of(base, number), V(number))
        assert names_in(tmp_path) == {"mine", "current.json", "0.3", "0.4"}
    assert names_in(tmp_path) == {"mine", "current.json", "0.4"}, (
        "no server reads the previous folder"
    )
    current = json.loads((tmp_path / "current.json").read_text())
    assert current["version"] == "4"
    assert read_number(current["path"]) == 4
    assert policy.left == Path(current["path"])


async def test_leftovers_of_a_killed_trainer_are_removed_before_a_write(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = WeightFolders(tmp_path)
    for label in ("0.1-00000001", "0.2-00000002"):
        folder = folders.write(weights_of(base, 1), label)
        folders.point(Target(label, folder), V(2))
    (tmp_path / "0.3-00000003.part").mkdir()
    (tmp_path / "current.json.part").touch()
    seen: list[set[str]] = []
    real = WeightFolders.write

    def write(self: WeightFolders, weights: Weights, label: str) -> Path:
        seen.append(names_in(tmp_path))
        return real(self, weights, label)

    monkeypatch.setattr(WeightFolders, "write", write)
    async with running_policy(replicas("vllm"), tmp_path) as policy:
        await policy.publish(weights_of(base, 3), V(3))
    # A server may be loading the current folder.
    assert seen == [{"0.2", "current.json"}]
    assert names_in(tmp_path) == {"0.3", "current.json"}


async def test_after_a_rejected_version_the_current_folder_stays(
    base: Path, tmp_path: Path
) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        servers[0].faults["/pause"].append(500)
        with pytest.raises(PolicyError):
            await policy.publish(weights_of(base, 2), V(2))
        assert names_in(tmp_path) == {"0.1", "0.2", "current.json"}
    assert names_in(tmp_path) == {"0.2", "current.json"}


async def test_a_policy_that_wrote_nothing_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.7-deadbeef").mkdir()
    async with running_policy(replicas("vllm"), tmp_path) as policy:
        await policy.publish(None, V(0))
        policy.discard()
    assert names_in(tmp_path) == {"0.7"}
    assert policy.left is None


async def test_discarding_removes_only_own_files(base: Path, tmp_path: Path) -> None:
    for name in ("own", "shared"):
        root = tmp_path / name
        async with running_policy(replicas("vllm"), root) as policy:
            await policy.publish(weights_of(base, 1), V(0))
            if name == "shared":
                (root / "mine").mkdir()
            policy.discard()
    assert names_in(tmp_path) == {"shared"}
    assert names_in(tmp_path / "shared") == {"mine"}


def test_runs_of_one_name_have_separate_folders_and_find_them_again(tmp_path: Path) -> None:
    runs = [RunDirectory(tmp_path / user / "qwen") for user in ("ann", "bob")]
    for run in runs:
        run.path.mkdir(parents=True)
    first = [weight_folder_of(tmp_path / "weights", run) for run in runs]
    assert first[0] != first[1]
    assert all(folder.name.startswith("qwen-") for folder in first)
    assert first == [weight_folder_of(tmp_path / "weights", run) for run in runs]
    (runs[0].path / FOLDER_FILE).write_text("{")
    with pytest.raises(UsageError, match=r"weights\.json does not name.*remove it"):
        weight_folder_of(tmp_path / "weights", runs[0])


async def test_if_the_folder_is_unwritable_no_server_is_called(base: Path, tmp_path: Path) -> None:
    servers = replicas("vllm")
    file = tmp_path / "file"
    file.write_text("")
    async with running_policy(servers, file) as policy:
        for server in servers:
            server.calls.clear()
        with pytest.raises(PolicyError, match=r"cannot be written to .*\[training\] weights"):
            await policy.publish(weights_of(base, 1), V(1))
        assert not any(server.calls for server in servers)
        await policy.publish(None, V(1))


async def test_a_full_disk_keeps_the_existing_folders(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = replicas("vllm")
    async with running_policy(servers, tmp_path) as policy:
        await policy.publish(weights_of(base, 1), V(1))
        before = sorted(tmp_path.iterdir())

        created: list[str] = []

        def full_disk(source: Path, target: Path) -> None:
            created.extend(path.name for path in tmp_path.iterdir() if path not in before)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("shutil.copyfile", full_disk)
        with pytest.raises(PolicyError, match="No space left on device"):
            await policy.publish(weights_of(base, 2), V(2))
        assert [name.endswith(".part") for name in created] == [True], (
            "an incomplete folder has another name"
        )
        assert sorted(tmp_path.iterdir()) == before
        assert await policy.check() == ()
        assert [server.number for server in servers] == [1, 1, 1]


class ExternallyLoaded(StandIn):
    """A server that gets its weights from another program."""

    root = "first"

    def model_card(self) -> dict[str, object]:
        return {"id": "m", "root": self.root}


async def test_with_path_every_replica_is_awaited_until_it_reports_the_folder(
    base: Path, tmp_path: Path
) -> None:
    servers = [ExternallyLoaded(), ExternallyLoaded()]
    async with running_policy(servers, tmp_path, server="path") as policy:
        await policy.publish(None, V(0))
        publishing = asyncio.create_task(policy.publish(weights_of(base, 1), V(1)))
        await until((tmp_path / "current.json").exists)
        folder = json.loads((tmp_path / "current.json").read_text())["path"]
        assert read_number(folder) == 1, "current.json names a complete folder"
        servers[0].root = folder
        await asyncio.sleep(0.1)
        assert not publishing.done()
        servers[1].root = folder
        await publishing


async def test_with_path_a_replica_that_does_not_load_is_named(base: Path, tmp_path: Path) -> None:
    servers = [ExternallyLoaded(), ExternallyLoaded()]
    async with running_policy(servers, tmp_path, server="path", update_seconds=1.0) as policy:
        with pytest.raises(PolicyError, match=rf"{servers[0].url} serves first, not {tmp_path}"):
            await policy.publish(weights_of(base, 1), V(1))
