"""Trainings on remote servers that generate with a real model and load its new weights."""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from run_files import Start, prompts, run_to_end, wait_for
from training_files import GRADE, final_weights, lines, make_model, write_training

from plimsoll.ledger.report import make_report
from ports import held_port

SERVER = Path(__file__).parents[1] / "model_server.py"
SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * SECONDS)]


class Replica:
    """One server, which can be killed and started again at its address."""

    def __init__(self, start: Start, model: Path, port: int) -> None:
        self._start = start
        self._model = model
        self._at = f"http://127.0.0.1:{port}"
        self.process = self.start()

    @property
    def url(self) -> str:
        return f"{self._at}/v1"

    def start(self) -> subprocess.Popen[str]:
        port = self._at.rpartition(":")[2]
        self.process = self._start(str(self._model), port, python=(str(SERVER),))
        wait_for(self._answers, self.process)
        return self.process

    def get(self, route: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self._at + route, timeout=30) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        try:
            self.get("/weight_info")
        except OSError:
            return False
        return True


@pytest.fixture
def replica(start: Start) -> Iterator[Callable[[Path], Replica]]:
    """Starts a replica that serves a model."""
    with ExitStack() as held:
        yield lambda model: Replica(start, model, held.enter_context(held_port()))


@pytest.fixture
def replicas(
    replica: Callable[[Path], Replica], write_task: Callable[..., Path], tmp_path: Path
) -> list[Replica]:
    """Two replicas whose weights at their start differ from those that the training begins with."""
    for name in ("a", "b"):
        write_task(name, test=GRADE)
    other = make_model(tmp_path / "other", seed=1)
    return [replica(other) for _ in range(2)]


def write(
    folder: Path, replicas: list[Replica], *, mode: str, steps: int, weights: str | None = None
) -> None:
    training = {"policy": "openai", "mode": mode} | ({"weights": weights} if weights else {})
    file = write_training(folder, training=training, steps=steps)
    urls = json.dumps([replica.url for replica in replicas])
    file.write_text(file.read_text().replace("[policy]\n", f"[policy]\nurls = {urls}\n"))


def check_served_weights(replicas: list[Replica], run: Path, step: int) -> None:
    """Check that all replicas report the last version and serve the weights of its checkpoint."""
    labels = {replica.get("/weight_info")["weight_version"] for replica in replicas}
    assert len(labels) == 1
    assert labels.pop().split("-")[0].endswith(f".{step}")
    last = {name: float(tensor.norm()) for name, tensor in final_weights(run).items()}
    for replica in replicas:
        assert replica.get("/norms") == pytest.approx(last, rel=1e-5)


def test_tokens_of_replicas_come_from_the_recorded_version(
    replicas: list[Replica], start: Start, tmp_path: Path
):
    write(tmp_path, replicas, mode="sync", steps=4)
    report = run_to_end(start, "run", "night.toml", "--out", "run")
    assert (report["steps"], report["max_age"]) == (4, 0)
    # The learner's log probabilities of a token would differ if the replica served older weights,
    # or those of its start.
    learned = [line["update"] for line in lines(tmp_path / "run/steps.jsonl")]
    measured = [update for update in learned if update["kl"] is not None]
    assert len(measured) > 1, "there was nothing to learn in these steps"
    for update in measured:
        assert update["kl"] == pytest.approx(0.0, abs=1e-6)
        assert update["weight_mean"] == pytest.approx(1.0, abs=1e-4)
    check_served_weights(replicas, tmp_path / "run", 4)
    (left,) = (tmp_path / "run/weights").glob("0.*")
    assert left.name.startswith("0.4-"), "the weights of earlier versions are removed"
    process = start("resume", "run")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    (left,) = (tmp_path / "run/weights").glob("0.*")
    assert f"the last weights stay in {left} for the servers; remove {left.parent} when" in out


@pytest.mark.parametrize("weights", [None, "shared"])
def test_a_failed_start_leaves_no_weights(
    start: Start,
    replica: Callable[[Path], Replica],
    write_task: Callable[..., Path],
    tmp_path: Path,
    weights: str | None,
):
    write_task("a", test=GRADE)
    other = replica(make_model(tmp_path / "other", hidden=32))
    write(tmp_path, [other], mode="sync", steps=2, weights=weights)
    process = start("run", "night.toml", "--out", "run")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, out + err
    assert f"version 0 is not served by every replica: the policy at {other.url}" in err
    assert "Nothing was started" in err and "goes on" not in err
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob("shared/*"))


def test_a_training_survives_its_own_restart_and_that_of_a_replica(
    replicas: list[Replica], start: Start, tmp_path: Path
):
    write(tmp_path, replicas, mode="async", steps=8, weights="shared")
    run = tmp_path / "run"
    process = start("run", "night.toml", "--out", "run")
    metrics = run / "steps.jsonl"
    wait_for(lambda: metrics.exists() and len(lines(metrics)) >= 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    replicas[0].process.kill()
    replicas[0].process.wait()
    replicas[0].start()
    # A kill during a write leaves such a folder.
    (folder,) = (tmp_path / "shared").iterdir()
    (folder / "0.9-00000000.part").mkdir()
    report = run_to_end(start, "resume", "run")
    assert list((tmp_path / "shared").iterdir()) == [folder], "the resumed run uses the same folder"
    left, current = sorted(path.name.split("-")[0] for path in folder.iterdir())
    # A resume begins a new lineage only after a kill during a step, not between steps.
    assert left in ("0.8", "1.8") and current == "current.json"
    assert report["steps"] == 8
    assert report["max_age"] <= report["eta"]
    check_served_weights(replicas, run, 8)
    chosen = prompts(run)
    assert len(chosen) == len(set(chosen)) == 16, "a prompt was used twice"
    assert make_report(run, check=True, task=None).problems == []


def test_a_restarted_replica_gets_the_current_weights(
    replicas: list[Replica], start: Start, tmp_path: Path
):
    write(tmp_path, replicas, mode="async", steps=8)
    run = tmp_path / "run"
    process = start("run", "night.toml", "--out", "run", "--json")
    metrics = run / "steps.jsonl"
    wait_for(lambda: metrics.exists() and len(lines(metrics)) >= 2, process)
    replicas[1].process.kill()
    replicas[1].process.wait()
    replicas[1].start()
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    report = json.loads(out)
    assert report["steps"] == 8
    assert report["max_age"] <= report["eta"]
    check_served_weights(replicas, run, 8)
