"""The training loop around real rollouts: order of a step, checkpoints, endings."""

import errno
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from loop_parts import CountingLearner, RecordingPolicy, check_ledger, train
from msgspec.structs import replace
from safetensors import SafetensorError

from mounts import resize, tmpfs
from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import LedgerError, PolicyError, TrainingError
from plimsoll.core.versions import Version
from plimsoll.runs.batches import Batch
from plimsoll.runs.files.steps import StepReport, last_steps
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training import loop
from plimsoll.training.samples import TrainingSample
from stand_ins import stand_in

MakeConfig = Callable[..., Config]


@pytest.fixture
def make_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeConfig:
    """Makes the config of a training whose trials get random rewards."""
    for name, value in stand_in("loop_environment:coins", Path(__file__).parent).items():
        monkeypatch.setenv(name, value)

    def make(steps: int, *, every: int = 1, heldout: int | None = None) -> Config:
        for name in ("tasks/a", "tasks/b", "tasks/c", "heldout/d"):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "task.toml").write_text('schema_version = "1.4"\n')
            (tmp_path / name / "instruction.md").write_text("Toss.\n")
        evaluation = (
            "" if heldout is None else f'[evaluation]\ntasks = "heldout"\nevery = {heldout}'
        )
        (tmp_path / "night.toml").write_text(
            '[run]\ntasks = "tasks"\nagent = "nop"\ngroup_size = 2\nbatch_groups = 2\n'
            f"canary_every = 0\nsteps = {steps}\n[workers]\nconcurrency = 4\n"
            f"[training]\ncheckpoint_every = {every}\n{evaluation}"
        )
        return load_config(tmp_path / "night.toml")

    return make


def checkpoints(run: Path) -> list[str]:
    return sorted(path.stem for path in (run / "checkpoints").glob("*.json"))


def has_checkpoint(rollouts: Rollouts, version: Version) -> bool:
    name = f"v{version.lineage}-{version.number:08d}.json"
    return (rollouts.directory.path / "checkpoints" / name).exists()


async def test_a_step_writes_its_checkpoint_then_publishes_then_commits(
    make_config: MakeConfig, tmp_path: Path
):
    seen: list[tuple[str, str, bool]] = []
    runs: list[Rollouts] = []

    def record(version: Version) -> None:
        seen.append((str(version), str(runs[0].version), has_checkpoint(runs[0], version)))

    policy = RecordingPolicy(record)
    await train(make_config(4, every=2), tmp_path / "run", CountingLearner(), policy, runs.append)
    assert seen == [("1", "0", False), ("2", "1", True), ("3", "2", False), ("4", "3", True)]
    assert policy.published == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    lines = last_steps(tmp_path / "run/steps.jsonl", 9, up_to=9)
    assert [line.step for line in lines] == [1, 2, 3, 4]
    assert [bool(line.seconds.checkpoint) for line in lines] == [False, True, False, True]
    check_ledger(tmp_path / "run")


async def test_the_last_step_has_a_checkpoint_and_the_newest_are_kept(
    make_config: MakeConfig, tmp_path: Path
):
    await train(make_config(7, every=3), tmp_path / "run", CountingLearner(), RecordingPolicy())
    assert checkpoints(tmp_path / "run") == ["v0-00000006", "v0-00000007"]


async def test_a_run_stopped_between_checkpoints_resumes_from_its_last_step(
    make_config: MakeConfig, tmp_path: Path
):
    run, runs = tmp_path / "run", list[Rollouts]()

    def stop(version: Version) -> None:
        if version.number == 2:
            runs[0].stop("enough")

    rollouts = await train(
        make_config(5, every=100), run, CountingLearner(), RecordingPolicy(stop), runs.append
    )
    assert (rollouts.summary.done, rollouts.summary.ended) == (False, "enough")
    assert checkpoints(run) == ["v0-00000002"]
    learner, policy = CountingLearner(), RecordingPolicy()
    rollouts = await train(make_config(5, every=100), run, learner, policy)
    assert learner.loaded == run / "checkpoints/v0-00000002"
    assert policy.published == [("3", 3), ("4", 4), ("5", 5)]
    assert rollouts.summary.done
    assert len(rollouts.steps) == 5
    # The seconds include those before the stop, as the steps do; 0.1 is for rounding.
    assert rollouts.summary.seconds > sum(step.seconds.total for step in rollouts.steps) - 0.1
    check_ledger(run)


async def test_too_many_bad_steps_in_a_row_stop_the_run_with_a_checkpoint(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run, policy = tmp_path / "run", RecordingPolicy()
    learner = CountingLearner(bad=(2, 4, 5, 6))
    rollouts = await train(make_config(9, every=100), run, learner, policy)
    assert not rollouts.summary.done
    assert rollouts.summary.ended.startswith("3 steps in a row had no finite loss and gradient")
    # A bad step consumes its batch, and its version has the weights of the version before.
    assert policy.published == [
        ("1", 1),
        ("2", None),
        ("3", 3),
        ("4", None),
        ("5", None),
        ("6", None),
    ]
    assert checkpoints(run) == ["v0-00000006"]
    assert caplog.text.count("changed nothing: the loss is nan") == 4
    check_ledger(run)


async def test_a_partly_skipped_step_is_reported_and_published_and_not_bad(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class PartlySkipped(CountingLearner):
        def step(self, items: Sequence[TrainingSample]) -> StepReport:
            return replace(super().step(items), left_out=2)

    policy = RecordingPolicy()
    rollouts = await train(make_config(4), tmp_path / "run", PartlySkipped(), policy)
    assert rollouts.summary.done
    assert rollouts.summary.skipped == {}
    assert policy.published == [(str(step), step) for step in range(1, 5)]
    assert caplog.text.count("skipped 2 of its updates") == 4


async def test_a_group_without_its_trajectory_is_rolled_out_again(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv("PLIMSOLL_STAND_IN", "loop_environment:loses_first_group")
    run, policy = tmp_path / "run", RecordingPolicy()
    rollouts = await train(make_config(3), run, CountingLearner(), policy)
    assert rollouts.summary.done
    assert policy.published == [("1", 1), ("2", 2), ("3", 3)]
    assert "group 1-0 is rolled out again: /nowhere/at/all: no such file" in caplog.text
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    lost = [row["ticket"] for row in rows if row["cause"] == "lost"]
    assert lost == ["1-0/0.0", "1-0/1.0"]
    assert {row["ticket"] for row in rows} >= {"1-1/0.0", "1-1/1.0"}
    check_ledger(run)


async def test_the_line_of_a_step_has_its_loss_its_times_and_the_void_trials(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Reporting(CountingLearner):
        def step(self, items: Sequence[TrainingSample]) -> StepReport:
            return replace(super().step(items), loss=self.steps / 2, tokens=9)

    monkeypatch.setenv("PLIMSOLL_STAND_IN", "loop_environment:voids_first_trial")
    await train(make_config(2, every=2), tmp_path / "run", Reporting(), RecordingPolicy())
    lines = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert [(line["step"], line["version"]) for line in lines] == [(1, "1"), (2, "2")]
    assert [line["update"]["loss"] for line in lines] == [0.5, 1.0]
    assert [line["update"]["tokens"] for line in lines] == [9, 9]
    assert [line["void"] for line in lines] == [{"sandbox": 1}] * 2
    assert [line["graded"] for line in lines] == [4, 4]
    phases = {"total", "wait", "read", "update", "checkpoint", "publish"}
    assert set(lines[0]["seconds"]) == phases
    measured = [{name for name in phases if line["seconds"][name] is not None} for line in lines]
    assert measured == [phases - {"checkpoint"}, phases]
    for line in lines:
        assert line["seconds"]["wait"] > 0
        assert line["tokens_per_second"] > 0


async def test_a_run_without_any_trajectory_stops_and_resumes_once_they_are_back(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_STAND_IN", "loop_environment:loses_all_groups")
    run, learner = tmp_path / "run", CountingLearner()
    with pytest.raises(TrainingError, match="3 batches in a row had missing trajectories"):
        await train(make_config(3), run, learner, RecordingPolicy())
    assert learner.steps == 0
    check_ledger(run)
    monkeypatch.setenv("PLIMSOLL_STAND_IN", "loop_environment:coins")
    # The groups that were lost before are rejected first.
    monkeypatch.setattr(loop, "MAX_REJECTED", 9)
    rollouts = await train(make_config(3), run, learner, RecordingPolicy())
    assert rollouts.summary.done
    check_ledger(run)


async def test_a_run_stopped_by_bad_steps_resumes_until_the_next_bad_step(
    make_config: MakeConfig, tmp_path: Path
):
    class Idle(CountingLearner):
        """Has nothing to learn, which does not change the count of bad steps."""

        def step(self, items: Sequence[TrainingSample]) -> StepReport:
            return replace(super().step(items), skipped="nothing to learn")

        @property
        def bad_steps(self) -> int:
            return 3

        @bad_steps.setter
        def bad_steps(self, _: int) -> None: ...

    rollouts = await train(make_config(2), tmp_path / "run", Idle(), RecordingPolicy())
    assert rollouts.summary.done


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_in_rust(_: int) -> None:
    raise SafetensorError("I/O error: No space left on device (os error 28)")


async def test_a_failed_checkpoint_is_retried_at_the_next_step(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    learner = CountingLearner(save=lambda step: full_disk_in_rust(step) if step in (4, 5) else None)
    rollouts = await train(make_config(8, every=2), tmp_path / "run", learner, RecordingPolicy())
    assert rollouts.summary.done
    assert checkpoints(tmp_path / "run") == ["v0-00000006", "v0-00000008"]
    assert [step.step for step in rollouts.steps] == list(range(1, 9))
    assert "No space left on device (os error 28); the last one stays (2 of 3 tries)" in caplog.text
    check_ledger(tmp_path / "run")


async def test_a_run_that_cannot_save_its_last_weights_fails(
    make_config: MakeConfig, tmp_path: Path
):
    run, config = tmp_path / "run", make_config(4, every=9)
    with pytest.raises(TrainingError, match=r"steps since the last checkpoint are lost.*resume"):
        await train(config, run, CountingLearner(save=full_disk), RecordingPolicy())
    assert checkpoints(run) == []
    resumed = await train(config, run, CountingLearner(), RecordingPolicy())
    assert resumed.summary.done
    assert checkpoints(run) == ["v1-00000004"]
    check_ledger(run)


async def test_a_run_that_cannot_write_checkpoints_stops_and_the_old_one_stays_valid(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run, config = tmp_path / "run", make_config(20, every=3)
    learner = CountingLearner(save=lambda step: full_disk(step) if step > 3 else None)
    rollouts = await train(config, run, learner, RecordingPolicy())
    assert not rollouts.summary.done
    assert rollouts.summary.steps == 8
    assert "No space left on device" in rollouts.summary.ended
    assert "3 tries in a row failed" in rollouts.summary.ended
    assert checkpoints(run) == ["v0-00000003"]
    assert "steps since the last checkpoint are lost" in caplog.text
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        "v0-00000003",
        "v0-00000003.json",
    }, "a failed checkpoint was left behind"
    policy = RecordingPolicy()
    resumed = await train(make_config(5, every=3), run, CountingLearner(), policy)
    assert (resumed.summary.done, policy.published) == (True, [("1:4", 4), ("1:5", 5)])
    check_ledger(run)


async def test_a_failed_checkpoint_is_not_counted_as_written(
    make_config: MakeConfig, tmp_path: Path
):
    rollouts = await train(
        make_config(9), tmp_path / "run", CountingLearner(save=full_disk), RecordingPolicy()
    )
    assert (rollouts.summary.done, rollouts.summary.steps) == (False, 3)
    assert [step.seconds.checkpoint for step in rollouts.steps] == [None] * 3


async def test_unpublished_weights_are_neither_committed_nor_lost(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"

    def refuse(version: Version) -> None:
        if version.number == 3:
            raise PolicyError("gpu-2 does not answer")

    with pytest.raises(PolicyError, match="gpu-2 does not answer"):
        await train(make_config(4, every=100), run, CountingLearner(), RecordingPolicy(refuse))
    assert checkpoints(run) == ["v0-00000003"]
    policy = RecordingPolicy()
    rollouts = await train(make_config(4, every=100), run, CountingLearner(), policy)
    # Step 3 is in the checkpoint, so it is not repeated.
    assert policy.published == [("4", 4)]
    assert rollouts.summary.done
    check_ledger(run)


async def test_a_failed_step_leaves_a_checkpoint_of_the_previous_steps(
    make_config: MakeConfig, tmp_path: Path
):
    def fail(step: int) -> None:
        if step == 3:
            raise TrainingError("a token is out of range")

    with pytest.raises(TrainingError, match="out of range"):
        await train(
            make_config(4, every=100),
            tmp_path / "run",
            CountingLearner(step=fail),
            RecordingPolicy(),
        )
    assert checkpoints(tmp_path / "run") == ["v0-00000002"]
    check_ledger(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("no such thing"), "step 3 failed: KeyError: 'no such thing'.*resume"),
        (MemoryError(), "step 3 failed, out of memory: MemoryError.*micro_tokens.*resume"),
    ],
    ids=["unexpected", "memory"],
)
async def test_any_exception_in_a_step_is_reported_and_leaves_a_checkpoint(
    make_config: MakeConfig, tmp_path: Path, error: Exception, message: str
):
    run = tmp_path / "run"

    def fail(step: int) -> None:
        if step == 3:
            raise error

    with pytest.raises(TrainingError, match=message):
        await train(make_config(4, every=100), run, CountingLearner(step=fail), RecordingPolicy())
    assert checkpoints(run) == ["v0-00000002"]
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["why"][:13]) == ("ended", "step 3 failed")
    rollouts = await train(make_config(4, every=100), run, CountingLearner(), RecordingPolicy())
    assert rollouts.summary.done
    check_ledger(run)


async def test_weights_of_a_partial_step_are_never_saved(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run, learner = tmp_path / "run", CountingLearner()

    def fail(step: int) -> None:
        if step == 4:
            learner.is_whole = False
            raise TrainingError("out of memory")

    learner._fail_step = fail  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(TrainingError, match="out of memory"):
        await train(make_config(5, every=2), run, learner, RecordingPolicy())
    assert checkpoints(run) == ["v0-00000002"]
    assert "lost: the failed step had changed some of the weights; `plimsoll" in caplog.text
    policy = RecordingPolicy()
    await train(make_config(5, every=2), run, CountingLearner(), policy)
    assert policy.published == [("1:3", 3), ("1:4", 4), ("1:5", 5)]
    check_ledger(run)


async def test_any_exception_between_steps_leaves_a_checkpoint_and_is_in_the_status(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"

    def fail_third_batch(rollouts: Rollouts) -> None:
        real = rollouts.batches

        async def batches() -> AsyncGenerator[Batch]:
            async for batch in real():
                if batch.step == 3:
                    raise ZeroDivisionError("by nothing")
                yield batch

        rollouts.batches = batches

    with pytest.raises(ZeroDivisionError):
        await train(
            make_config(4, every=100), run, CountingLearner(), RecordingPolicy(), fail_third_batch
        )
    assert checkpoints(run) == ["v0-00000002"]
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["why"]) == ("ended", "ZeroDivisionError: by nothing")


async def test_an_error_while_saving_does_not_hide_the_original_error(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def fail(step: int) -> None:
        if step == 3:
            raise TrainingError("a token is out of range")

    def fail_save(_: int) -> None:
        raise TypeError("no tensor")

    learner = CountingLearner(step=fail, save=fail_save)
    with pytest.raises(TrainingError, match="out of range"):
        await train(make_config(4, every=100), tmp_path / "run", learner, RecordingPolicy())
    assert "steps since the last checkpoint are lost: TypeError: no tensor" in caplog.text


async def test_held_out_tasks_are_evaluated_before_during_and_after_and_never_twice(
    make_config: MakeConfig, tmp_path: Path
):
    run, runs = tmp_path / "run", list[Rollouts]()

    def stop(version: Version) -> None:
        if version.number == 3:
            runs[0].stop("enough")

    config = make_config(5, heldout=2)
    await train(config, run, CountingLearner(), RecordingPolicy(stop), runs.append)
    assert [(one.step, one.name) for one in runs[0].held_out] == [
        (0, "before the first step"),
        (2, "after step 2"),
    ]
    rollouts = await train(config, run, CountingLearner(), RecordingPolicy())
    assert [one.step for one in rollouts.held_out] == [0, 2, 4, 5]
    assert rollouts.held_out[-1].name == "after the last step"
    assert rollouts.summary.heldout_after == rollouts.held_out[-1].reward


class Killed(BaseException):
    """Ends the run as a killed process would: no handler of exceptions saves anything."""


def killed_at(number: int) -> RecordingPolicy:
    def kill(version: Version) -> None:
        if version.number == number:
            raise Killed

    return RecordingPolicy(kill)


async def test_after_a_kill_anywhere_every_step_has_one_line(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"
    # The checkpoint of step 4 is complete, so the step is not repeated.
    with pytest.raises(Killed):
        await train(make_config(8, every=2), run, CountingLearner(), killed_at(4))
    # There is no newer checkpoint, so steps 5 to 7 are repeated.
    with pytest.raises(Killed):
        await train(make_config(8, every=100), run, CountingLearner(), killed_at(7))
    with (run / "steps.jsonl").open("ab") as file:
        file.write(b'{"step":7,"vers')
    policy = RecordingPolicy()
    await train(make_config(8, every=100), run, CountingLearner(), policy)
    assert [version for version, _ in policy.published] == ["1:5", "1:6", "1:7", "1:8"]
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    versions = ["1", "2", "3", "4", "1:5", "1:6", "1:7", "1:8"]
    assert [(line["step"], line["version"]) for line in lines] == list(enumerate(versions, 1))
    check_ledger(run)


async def test_an_interrupted_evaluation_is_repeated_on_resume(
    make_config: MakeConfig, tmp_path: Path
):
    runs = list[Rollouts]()

    def stop(version: Version) -> None:
        if version.number == 2:
            runs[0].stop("enough")

    config = make_config(5, heldout=2)
    await train(config, tmp_path / "run", CountingLearner(), RecordingPolicy(stop), runs.append)
    assert [one.step for one in runs[0].held_out] == [0]
    rollouts = await train(config, tmp_path / "run", CountingLearner(), RecordingPolicy())
    assert [(one.step, one.name) for one in rollouts.held_out] == [
        (0, "before the first step"),
        (2, "after step 2"),
        (4, "after step 4"),
        (5, "after the last step"),
    ]


async def test_a_run_without_trainable_tokens_stops_with_the_reason(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv("PLIMSOLL_STAND_IN", "loop_environment:without_ids")
    rollouts = await train(make_config(9), tmp_path / "run", CountingLearner(), RecordingPolicy())
    assert not rollouts.summary.done
    reason = "the upstream returned no token ids"
    assert rollouts.summary.ended.startswith(
        f"3 steps in a row had no token to train on: {reason}. Check the"
    )
    lines = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert [line["untrainable"] for line in lines] == [4, 4, 4]
    assert caplog.text.count(reason) == 1


async def test_the_first_weights_are_not_evaluated_again_after_a_crash(
    make_config: MakeConfig, tmp_path: Path
):
    run, config = tmp_path / "run", make_config(2, every=100, heldout=0)
    with pytest.raises(Killed):
        await train(config, run, CountingLearner(), killed_at(1))
    rollouts = await train(config, run, CountingLearner(), RecordingPolicy())
    assert rollouts.steps[0].version == "1:1", "the run starts over"
    lines = (run / "heldout.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2]


async def test_resuming_a_finished_run_changes_nothing(make_config: MakeConfig, tmp_path: Path):
    run = tmp_path / "run"
    await train(make_config(3, heldout=0), run, CountingLearner(), RecordingPolicy())
    files = ("heldout.jsonl", "steps.jsonl")
    before = [(run / name).read_bytes() for name in files]
    for steps in (3, 2):
        policy = RecordingPolicy()
        rollouts = await train(make_config(steps, heldout=0), run, CountingLearner(), policy)
        assert (rollouts.summary.done, rollouts.summary.steps) == (True, 3)
        assert policy.published == []
        assert [(run / name).read_bytes() for name in files] == before
    assert checkpoints(run) == ["v0-00000002", "v0-00000003"]
    check_ledger(run)


async def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"
    await train(make_config(3), run, CountingLearner(), RecordingPolicy())
    (run / "checkpoints/v0-00000003/steps").write_text("4")
    learner, policy = CountingLearner(), RecordingPolicy()
    rollouts = await train(make_config(4), run, learner, policy)
    assert rollouts.restored.damaged == (
        f"{run}/checkpoints/v0-00000003: steps is missing or does not match its digest",
    )
    assert policy.published == [("1:3", 3), ("1:4", 4)]
    check_ledger(run)


async def test_if_every_checkpoint_is_damaged_the_run_is_refused(
    make_config: MakeConfig, tmp_path: Path
):
    run = tmp_path / "run"
    await train(make_config(3), run, CountingLearner(), RecordingPolicy())
    for file in (run / "checkpoints").glob("*/steps"):
        file.unlink()
    with pytest.raises(LedgerError, match="no checkpoint can be used"):
        await train(make_config(4), run, CountingLearner(), RecordingPolicy())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The checkpoint folder of `run`, on a small disk of its own."""
    with tmpfs(tmp_path / "run/checkpoints", "64k") as folder:
        yield folder


async def test_a_full_disk_during_a_checkpoint_leaves_the_old_one_valid(
    make_config: MakeConfig, tmp_path: Path, small_disk: Path
):
    class LargeCheckpoints(CountingLearner):
        def save(self, folder: Path) -> None:
            super().save(folder)
            (folder / "weights").write_bytes(bytes(12_000 if self.steps < 3 else 40_000))

    run = tmp_path / "run"
    rollouts = await train(make_config(9), run, LargeCheckpoints(), RecordingPolicy())
    assert "No space left on device" in rollouts.summary.ended
    assert checkpoints(run) == ["v0-00000001", "v0-00000002"]
    resize(small_disk, "1m")
    policy = RecordingPolicy()
    resumed = await train(make_config(6), run, LargeCheckpoints(), policy)
    assert resumed.summary.done
    assert policy.published[0] == ("1:3", 3)
    check_ledger(run)
