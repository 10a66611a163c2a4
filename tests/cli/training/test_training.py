"""`plimsoll run` and `resume` with training: real workers, sandboxes and models."""

import importlib.util
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import Start, no_sandbox, prompts, wait_for
from training_files import GRADE, final_weights, lines, make_model, write_training

from helpers import marked
from plimsoll.cli.terminal.start import start_run
from plimsoll.core.errors import PlimsollError, UsageError
from plimsoll.runs.files.steps import Step, StepsFile

WriteTask = Callable[..., Path]
SECONDS = 240

pytestmark = pytest.mark.timeout(3 * SECONDS)


@pytest.fixture
def tasks(write_task: WriteTask, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_task(name, test=GRADE)
    write_task("c", test=GRADE).rename(tmp_path / "tasks/../c")
    (tmp_path / "heldout").mkdir()
    (tmp_path / "c").rename(tmp_path / "heldout/c")


def edit(file: Path, **values: object) -> None:
    """Change keys of a config, in any of its tables."""
    text = file.read_text()
    for key, value in values.items():
        text, changed = re.subn(rf"(?m)^{key} =.*$", f"{key} = {json.dumps(value)}", text)
        assert changed == 1, key
    file.write_text(text)


@pytest.mark.slow
def test_a_training_prints_its_progress_and_its_result(
    tasks: None, start: Start, tmp_path: Path, mark: str
):
    config = write_training(tmp_path, training={"mode": "async"}, steps=4)
    with config.open("a") as file:
        file.write('[evaluation]\ntasks = "heldout"\nevery = 2\n[metrics]\ntensorboard = true\n')
    grader = tmp_path / "heldout/c/tests/test.sh"
    # Longer than the poll interval of the progress output, which names the evaluation.
    grader.write_text(grader.read_text().replace("\n", "\nsleep 2\n", 1))
    process = start("run", "night.toml", "--out", "run")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    first, *_ = out.splitlines()
    assert re.search(r"· torch policy, [\d,]+ parameters, CPU · 2 tasks · 4 steps", first)
    assert re.search(r"held-out reward \d\.\d\d → \d\.\d\d · graded 1 → 1", out)
    assert "nothing lost, nothing twice (ledger checked)" in out
    assert out.splitlines()[-1] == "see: run/training.png · plimsoll ledger run"
    assert "loading the model\n" in err
    moments = "before the first step|after step 2|after the last step"
    assert re.search(rf"^held-out tasks ({moments})$", err, re.M)
    run = tmp_path / "run"
    assert run.joinpath("training.png").read_bytes().startswith(b"\x89PNG")
    assert [line["step"] for line in lines(run / "steps.jsonl")] == [1, 2, 3, 4]
    assert [line["step"] for line in lines(run / "heldout.jsonl")] == [0, 2, 4]
    assert list((run / "tensorboard").iterdir())
    report = json.loads((run / "summary.json").read_text())
    fields = {"heldout_before", "heldout_after", "steps", "max_age", "eta", "graded", "void"}
    assert fields | {"quarantined", "seconds"} <= report.keys()
    assert report["max_age"] <= report["eta"] == 2
    shown, err = start("status", "run").communicate(timeout=SECONDS)
    heads, *steps = (
        line.split()
        for line in shown.splitlines()
        if line[:4].strip().isdigit() or line.startswith("step")
    )
    assert heads[:4] == ["step", "reward", "held-out", "flat"], err
    assert [step[0] for step in steps] == ["1", "2", "3", "4"]
    # The last checkpoint is a loadable model with new weights.
    weights = final_weights(run)
    assert any(not torch.equal(weights[n], t) for n, t in first_weights(tmp_path).items())
    assert marked(mark) == {}
    assert no_sandbox(tmp_path)


def first_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model/model.safetensors")


@pytest.mark.slow
def test_a_stopped_training_keeps_its_last_step_and_resumes_with_changed_settings(
    tasks: None, start: Start, tmp_path: Path, mark: str
):
    write_training(tmp_path, training={"checkpoint_every": 100}, steps=50)
    process = start("run", "night.toml", "--out", "run")
    run = tmp_path / "run"
    wait_for(lambda: (run / "steps.jsonl").exists() and lines(run / "steps.jsonl"), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert "stopping: running trials have 5 s" in err
    assert "continue: plimsoll resume run" in out
    made = json.loads((run / "summary.json").read_text())["steps"]
    (kept,) = (run / "checkpoints").glob("*.json")
    assert kept.stem == f"v0-{made:08d}"
    edit(run / "config.toml", learning_rate=0.5, steps=made + 1)
    process = start("resume", "run", "--json")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    last = lines(run / "steps.jsonl")[-1]
    assert (last["step"], last["version"]) == (made + 1, str(made + 1))
    assert last["update"]["learning_rate"] == 0.5
    assert sorted(prompts(run)) == list(range(2 * (made + 1)))
    assert marked(mark) == {}


@pytest.mark.slow
def test_a_second_signal_ends_a_training_at_once_without_leftovers(
    write_task: WriteTask, start: Start, tmp_path: Path, mark: str
):
    write_task("a", test=f"{GRADE}sleep 4\n")
    write_training(tmp_path, steps=50)
    process = start("run", "night.toml", "--out", "run")
    wait_for(lambda: list((tmp_path / "run/trials").glob("*/agent")), process)
    process.send_signal(signal.SIGTERM)
    # Two signals count as one if the second arrives before the first is handled.
    assert process.stderr is not None
    assert any("stopping:" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert "ended at once · continue: plimsoll resume run" in err
    wait_for(lambda: marked(mark) == {})
    wait_for(lambda: no_sandbox(tmp_path))


@pytest.mark.slow
def test_resume_names_the_steps_that_it_repeats(
    tasks: None, start: Start, tmp_path: Path, mark: str
):
    write_training(tmp_path, training={"checkpoint_every": 100}, steps=50)
    process = start("run", "night.toml", "--out", "run")
    run = tmp_path / "run"
    wait_for(
        lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) > 1, process
    )
    process.kill()
    process.wait()
    wait_for(lambda: marked(mark) == {})
    last = lines(run / "steps.jsonl")[-1]["step"]
    edit(run / "config.toml", steps=1)
    process = start("resume", "run", "--json")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    said = f"resuming from step 0 (no checkpoint yet): steps 1 to {last} are repeated"
    assert said in err.splitlines()
    edit(run / "config.toml", steps=2)
    process = start("resume", "run", "--json")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    assert "repeated" not in err, "no step was undone"


def out_of_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """The third step runs out of memory."""
    calls, real = iter(range(1, 100)), torch.nn.utils.clip_grad_norm_

    def clip(*args: Any, **named: Any) -> torch.Tensor:
        if next(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(*args, **named)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    return "out of memory in a step of"


def full_disk(monkeypatch: pytest.MonkeyPatch) -> str:
    """The disk is full after the third step, when its line is written to steps.jsonl."""
    real = StepsFile.write

    def write(self: StepsFile, step: Step, *, is_complete: bool) -> None:
        if step.step == 3:
            raise UsageError("cannot write steps.jsonl: No space left on device")
        real(self, step, is_complete=is_complete)

    monkeypatch.setattr(StepsFile, "write", write)
    return "cannot write steps.jsonl: No space left on device"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [out_of_memory, full_disk])
def test_a_failed_training_keeps_its_steps_and_prints_reason_and_remedy(
    tasks: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[pytest.MonkeyPatch], str],
):
    # With a KL penalty every step makes an update, even if all rewards are equal.
    training = {"checkpoint_every": 100, "kl": 0.01}
    write_training(tmp_path, training=training, steps=4)
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        why = fault(patched)
        code = start_run(tmp_path / "night.toml", out=run, keep_going=False, as_json=True)
    out, err = capsys.readouterr()
    assert code == 3, err
    assert f"plimsoll: {why}" in err.splitlines()[-1]
    assert f"continue: plimsoll resume {run}" in err
    report = json.loads(out)
    assert (report["done"], report["steps"]) == (False, 2)
    assert report["ended"].startswith(why)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["why"]) == ("ended", report["ended"])
    assert run.joinpath("training.png").read_bytes().startswith(b"\x89PNG")
    (kept,) = (run / "checkpoints").glob("*.json")
    assert kept.stem == ("v0-00000002" if fault is out_of_memory else "v0-00000003")
    assert start_run(run / "config.toml", out=run, keep_going=False, as_json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 4
    assert "repeated" not in err


@pytest.mark.slow
def test_two_ranks_train_like_one(tasks: None, start: Start, tmp_path: Path, mark: str):
    write_training(tmp_path, steps=2)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for name, python in {
        "one": ("-m", "plimsoll"),
        "two": (*torchrun, "-m", "plimsoll"),
    }.items():
        process = start("run", "night.toml", "--out", name, "--json", python=python)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, out + err
        assert json.loads(out)["steps"] == 2, "only one rank prints"
    two = final_weights(tmp_path / "two")
    for name, tensor in final_weights(tmp_path / "one").items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6)
    assert marked(mark) == {}


def start_error(folder: Path, **training: object) -> str:
    """The error message of a training that cannot start. Checks that no run directory is left."""
    write_training(folder, training=training)
    with pytest.raises(PlimsollError) as error:
        start_run(folder / "night.toml", out=folder / "run", keep_going=False, as_json=False)
    assert not (folder / "run").exists()
    return str(error.value)


def test_an_unusable_model_is_named_with_a_remedy(tasks: None, tmp_path: Path):
    assert "there is no folder" in start_error(tmp_path, model="nowhere")
    assert "config.json" in start_error(tmp_path, model="tasks")
    assert 'the policy "tiny" has its own model' in start_error(tmp_path, policy="tiny")
    write_training(tmp_path)
    text = (tmp_path / "night.toml").read_text().replace('model = "model"\n', "")
    (tmp_path / "night.toml").write_text(text)
    with pytest.raises(UsageError, match=r"needs a model: set its folder as \[training\] model"):
        start_run(tmp_path / "night.toml", out=tmp_path / "run", keep_going=False, as_json=False)
    plain = make_model(tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    assert "has no chat template" in start_error(tmp_path, model="plain")


def test_a_checkpoint_of_another_model_is_refused(
    tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_training(tmp_path, steps=1)
    run = tmp_path / "run"
    assert start_run(tmp_path / "night.toml", out=run, keep_going=False, as_json=False) == 0
    make_model(tmp_path / "larger", hidden=32)
    edit(run / "config.toml", model=str(tmp_path / "larger"), steps=2)
    with pytest.raises(PlimsollError, match="does not fit the model"):
        start_run(run / "config.toml", out=run, keep_going=False, as_json=False)
    assert (run / "ledger.db").exists()


def test_missing_packages_for_training_are_named(
    tasks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_training(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else 1)
    with pytest.raises(
        UsageError, match=r"not installed \(torch\): pip install 'plimsoll-rl\[train"
    ):
        start_run(tmp_path / "night.toml", out=None, keep_going=False, as_json=False)


def test_a_run_without_training_does_not_import_torch(start: Start, tmp_path: Path):
    code = (
        "import sys, plimsoll.cli.terminal.start, plimsoll.cli.commands.run\n"
        "import plimsoll.runs.rollouts\n"
        "print({'torch', 'transformers', 'numpy'} & sys.modules.keys())"
    )
    out, err = start(python=("-c", code)).communicate(timeout=SECONDS)
    assert out.strip() == "set()", err
    assert "torch" in sys.modules
