"""Batches for a trainer: tokens with their masks, read from any storage."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from parts import need
from plimsoll.config.file import load_config
from plimsoll.core.errors import SandboxUnavailable, TrajectoryError
from plimsoll.core.versions import Version
from plimsoll.runs.batches import Batch, BatchGroup, Rollout
from plimsoll.runs.rollouts import Rollouts
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions

SCRIPT = '[[turns]]\nrun = "touch /tmp/done"\n'
GRADES = "#!/bin/bash\ntest -f /tmp/done; echo $((1-$?)) >/logs/verifier/reward.txt\n"


@pytest.fixture
async def batch(make_tasks: Callable[..., object], tmp_path: Path, home: Path) -> Batch:
    """A batch of a real run with the shell agent, whose trajectories are stored elsewhere."""
    try:
        async with LocalBackend(LocalOptions(home=home)):
            pass
    except SandboxUnavailable as error:
        need("local", str(error))
    make_tasks("a", "b")
    for name in ("a", "b"):
        for folder, file, text in (
            ("environment", "Dockerfile", "FROM scratch-host\n"),
            ("tests", "test.sh", GRADES),
        ):
            (tmp_path / "tasks" / name / folder).mkdir()
            (tmp_path / "tasks" / name / folder / file).write_text(text)
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "run.toml").write_text(
        '[run]\ntasks = "tasks"\nsteps = 1\ngroup_size = 2\nbatch_groups = 2\n'
        '[policy]\nurls = ["scripted:script.toml"]\n[workers]\nconcurrency = 2\n'
        f'[local]\nhome = "{home}"\n[storage]\ntrajectories = "file://{tmp_path}/stored"\n'
    )
    config = load_config(tmp_path / "run.toml")
    async with Rollouts(config, out=tmp_path / "run") as rollouts:
        batch = await anext(rollouts.batches())
        await rollouts.commit(batch)
    return batch


async def test_samples_are_read_from_storage_and_masked_by_version_and_withholding(
    batch: Batch, tmp_path: Path
):
    members = [member for group in batch.groups for member in group.members]
    assert len(members) == 4
    assert batch.reward == 1.0
    assert all(m.trajectory.startswith(f"file://{tmp_path}/stored") for m in members)
    assert not list((tmp_path / "run").rglob("trajectory.jsonl.zst"))
    (sample,) = members[0].samples()
    assert sum(sample.mask) > 0
    assert len(list(batch.samples())) == 4
    assert {advantage for _, advantage in batch.samples()} == {0.0}
    # Tokens of weights older than its head, a withheld or a void rollout: nothing to train on.
    (old,) = replace(members[0], head=Version(0, 9)).samples()
    assert sum(old.mask) == 0
    assert old.ids == sample.ids
    assert list(replace(members[0], withheld=True).samples()) == []
    assert list(replace(members[0], reward=None).samples()) == []
    # From a storage without local files.
    memory = fsspec.filesystem("memory")
    stored = Path(members[0].trajectory.removeprefix("file://"))
    memory.pipe_file("/kept/one.jsonl.zst", stored.read_bytes())
    far = replace(members[0], trajectory="memory://kept/one.jsonl.zst")
    assert next(far.samples()).ids == sample.ids
    with pytest.raises(TrajectoryError, match="no such file"):
        replace(far, trajectory="memory://kept/gone.jsonl.zst").read()


def rollout(reward: float | None, *, withheld: bool = False, head: int = 0) -> Rollout:
    version = Version(0, head)
    return Rollout(
        ticket="0-0/0.0",
        task="t",
        reward=reward,
        trajectory="",
        head=version,
        oldest=version,
        newest=version,
        withheld=withheld,
        sandbox_seconds=None,
        seconds=1.0,
        folder=Path(),
    )


def group(*members: Rollout) -> BatchGroup:
    return BatchGroup(id="0-0", task="t", prompt=0, members=members)


def test_the_baseline_includes_withheld_members_and_no_void_ones():
    void = group(rollout(1.0), rollout(0.0), rollout(None))
    assert void.advantages() == (0.5, -0.5, None)
    withheld = group(rollout(1.0), rollout(0.0, withheld=True))
    assert withheld.advantages() == (0.5, -0.5)


def test_the_age_of_a_batch_is_that_of_the_oldest_token_it_trains_on():
    members = group(rollout(1.0, head=4), rollout(0.0, head=1, withheld=True), rollout(None))
    batch = Batch(step=6, version=Version(0, 5), groups=(members,))
    assert batch.age == 1
    assert batch.reward == 0.5
