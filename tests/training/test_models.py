"""Loading of models and tokenizers, and the messages about unusable folders."""

import json
from pathlib import Path

import pytest
import torch
from planted_code import Planted
from safetensors.torch import load_file, save_file
from tiny_model import make_model

from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.training import models
from plimsoll.training.models import (
    find_device,
    find_dtype,
    is_out_of_memory,
    load_model,
    load_tokenizer,
)


@pytest.fixture(scope="module")
def intact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def test_a_folder_of_save_pretrained_is_loaded(intact_folder, capfd):
    model, tokenizer = load_model(intact_folder), load_tokenizer(intact_folder)
    assert not model.training
    assert next(model.parameters()).dtype == torch.float32
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|start|>user\nhi<|end|>\n"
    assert capfd.readouterr() == ("", "")


def test_a_missing_folder_is_named(tmp_path):
    for load in (load_model, load_tokenizer):
        with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/none"):
            load(tmp_path / "none")


def test_a_folder_without_a_model_is_refused_with_the_expected_files(tmp_path):
    with pytest.raises(UsageError, match=r"is not a model: it has no config\.json"):
        load_model(tmp_path)


def test_code_in_a_model_folder_is_not_executed(folder: Path, tmp_path: Path):
    planted = tmp_path / "planted"
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Planted(planted)}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pickled with code.*use a model with model\.safetensors"):
        load_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "planted", "auto_map": {"AutoModelForCausalLM": "planted.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "planted.py").write_text(f"import os\nos.mkdir({str(planted)!r})\n")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_model(folder)
    assert not planted.exists()


def test_a_missing_chat_template_is_reported_with_its_expected_path(tmp_path):
    with pytest.raises(UsageError, match=r"no chat template.*chat_template\.jinja"):
        load_tokenizer(make_model(tmp_path, template=None))


def cut_short(data: bytes) -> bytes:
    return data[:-1000]


def cut_in_its_head(data: bytes) -> bytes:
    return data[:500]


def garbage(data: bytes) -> bytes:
    return b"garbage!" * (len(data) // 8)


@pytest.mark.parametrize("spoil", [cut_short, cut_in_its_head, garbage])
def test_damaged_weights_are_reported_as_damaged(folder, spoil):
    file = folder / "model.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(UsageError, match=f"a file in {folder} is damaged"):
        load_model(folder)


def test_weights_with_a_missing_tensor_are_refused(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lack model\.layers\.0\.self_attn\.q_proj\.weight"):
        load_model(folder)


def test_weights_of_another_shape_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 256}))
    with pytest.raises(UsageError, match=r"cannot be loaded|shapes"):
        load_model(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_damaged_model_config_is_reported_in_one_sentence(folder, file):
    (folder / file).write_text('{"half')
    with pytest.raises(UsageError, match=str(folder)) as caught:
        load_model(folder) if file == "config.json" else load_tokenizer(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_reported(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer: .*tokenizer\.json"):
        load_tokenizer(folder)


def test_an_unknown_model_type_is_reported_in_one_sentence(folder):
    (folder / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(UsageError, match="unheard_of"):
        load_model(folder)


def test_out_of_memory_while_loading_is_a_training_error(intact_folder, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(models.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(TrainingError, match="out of memory while loading"):
        load_model(intact_folder)


def test_devices_and_dtypes_are_found_by_name():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda")
    for wrong in ("gpu7", "cuda:99"):
        with pytest.raises(UsageError, match=wrong):
            find_device(wrong)
    cpu = torch.device("cpu")
    assert find_dtype("auto", cpu) == find_dtype("float32", cpu) == torch.float32
    assert find_dtype("bfloat16", cpu) == torch.bfloat16


def test_out_of_memory_is_distinguished_from_other_errors():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
