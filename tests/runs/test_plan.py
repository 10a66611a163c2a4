"""From a config to a plan: the server of the policy, the modes, the paths and the tasks."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from rollout_runs import MakeTasks

from plimsoll.agents.registry import make_agent
from plimsoll.config.dump import dump_config
from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import UsageError
from plimsoll.core.versions import Lineages, Version
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.plan import Plan
from plimsoll.runs.recovery import checkpoints_of
from plimsoll.runs.rollouts import Rollouts
from plimsoll.runs.validation.records import (
    RecordFolder,
    TaskRecord,
    TaskRecords,
    digest_task,
)
from plimsoll.runs.worker_setup import worker_spec
from plimsoll.workers.worker.policy_service import PolicySpec, ServedPolicy, policy_for

Write = Callable[..., Config]
URLS = ("http://127.0.0.1:9/v1",)


@pytest.fixture
def write(make_tasks: MakeTasks, tmp_path: Path) -> Write:
    make_tasks("a")
    make_tasks("b", into="heldout")

    def write(tables: str = "", **run: object) -> Config:
        lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in run.items()]
        text = ["[run]", 'tasks = "tasks"', "steps = 1", *lines, tables]
        (tmp_path / "run.toml").write_text("\n".join(text))
        return load_config(tmp_path / "run.toml")

    return write


def test_workers_get_the_current_servers_and_the_stored_config_does_not(
    write: Write, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(KEY_VARIABLE, "of the shell")
    plan = Plan.make(
        write('[training]\npolicy = "torch"'), ServedPolicy(URLS, "of the server", "m")
    )
    spec = worker_spec(plan, directory)
    received = msgspec.json.decode(spec.options.config)["policy"]
    assert (tuple(received["urls"]), received["model"]) == (URLS, "m")
    assert spec.environment[KEY_VARIABLE] == "of the server"
    assert plan.policy is not None
    assert plan.policy.urls == URLS
    assert URLS[0] not in dump_config(plan.config)


def policy_of_workers(write: Write, directory: RunDirectory, tables: str) -> PolicySpec:
    """The policy that workers derive from their spec, for a config with these tables."""
    plan = Plan.make(write(f'[policy]\nurls = ["{URLS[0]}"]\n{tables}'))
    received = msgspec.json.decode(worker_spec(plan, directory).options.config)
    policy = policy_for(make_agent("shell"), Config.model_validate(received).policy, (), None, None)
    assert policy is not None
    return policy


@pytest.mark.parametrize(
    ("tables", "seed"),
    [
        ("", None),
        ("seed = 4", 4),
        ('[training]\npolicy = "openai"\nseed = 3', 3),
        ('[training]\npolicy = "openai"', 0),
        ('seed = 4\n[training]\npolicy = "openai"\nseed = 3', 4),
        ('seeded = false\n[training]\npolicy = "openai"', None),
    ],
)
def test_a_training_run_sets_the_sampling_of_answers(
    write: Write, directory: RunDirectory, tables: str, seed: object
):
    assert policy_of_workers(write, directory, tables).seed == seed


@pytest.mark.parametrize(
    ("tables", "is_plain"),
    [
        ("", False),
        ('sampling = "model"', True),
        ('[training]\npolicy = "openai"', True),
        ('sampling = "asked"\n[training]\npolicy = "openai"', False),
    ],
)
def test_a_training_run_samples_from_the_unmodified_model_by_default(
    write: Write, directory: RunDirectory, tables: str, is_plain: bool
):
    assert policy_of_workers(write, directory, tables).plain is is_plain


@pytest.mark.parametrize(
    ("algorithm", "is_watched"), [("grpo", True), ("gspo", True), ("ppo", False)]
)
def test_groups_without_variance_are_watched_unless_there_is_a_critic(
    write: Write, algorithm: str, is_watched: bool
):
    training = f'[training]\npolicy = "openai"\nalgorithm = "{algorithm}"'
    plan = Plan.make(write(f'[policy]\nurls = ["{URLS[0]}"]\n{training}'))
    assert plan.settings.group_size > 1
    assert (plan.breaker_limits(stops=True).group == plan.settings.group_size) is is_watched


def test_workers_get_the_key_of_the_environment_for_servers_of_the_config(
    write: Write, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(KEY_VARIABLE, "of the shell")
    plan = Plan.make(write(f'[policy]\nurls = ["{URLS[0]}"]'))
    assert worker_spec(plan, directory).environment[KEY_VARIABLE] == "of the shell"


def test_workers_locate_sandboxes_as_the_run_does(
    write: Write, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_HOME", "/elsewhere")
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine:2376")
    policy = f'[policy]\nurls = ["{URLS[0]}"]'
    local = worker_spec(Plan.make(write(policy)), directory).environment
    assert local["PLIMSOLL_HOME"] == "/elsewhere"
    assert "DOCKER_HOST" not in local
    docker = worker_spec(Plan.make(write(policy, backend="docker")), directory).environment
    assert docker["DOCKER_HOST"] == "tcp://engine:2376"
    monkeypatch.delenv("PLIMSOLL_HOME")
    assert "PLIMSOLL_HOME" not in worker_spec(Plan.make(write(policy)), directory).environment


def test_a_resumed_run_finds_its_own_part_of_a_shared_storage(write: Write, tmp_path: Path):
    tables = f'[policy]\nurls = ["{URLS[0]}"]\n[storage]\ntrajectories = "{tmp_path}/far"'
    plan = Plan.make(write(tables))
    runs = [RunDirectory.create(tmp_path / name, now=datetime.now()) for name in ("a/n", "b/n")]
    received = [
        worker_spec(plan, directory).options.stored_as
        for directory in (*runs, RunDirectory(runs[0].path))
    ]
    assert received[0].startswith("n-")
    assert received[0] == received[2] != received[1]


def test_unwritable_storage_is_rejected(write: Write):
    tables = f'[policy]\nurls = ["{URLS[0]}"]\n[storage]\ntrajectories = "/proc/nope"'
    with pytest.raises(UsageError, match=r"storage\.trajectories: /proc/nope cannot be written"):
        Plan.make(write(tables))


def test_a_policy_has_exactly_one_server_side(write: Write):
    torch = write(f'[training]\npolicy = "torch"\n[policy]\nurls = ["{URLS[0]}"]')
    with pytest.raises(UsageError, match=r"leave \[policy\] urls out"):
        Plan.make(torch)
    other = write('[policy]\nurls = ["http://127.0.0.1:8/v1"]')
    with pytest.raises(UsageError, match=r"leave \[policy\] urls out"):
        Plan.make(other, ServedPolicy(URLS))
    same = write(f'[training]\npolicy = "openai"\n[policy]\nurls = ["{URLS[0]}"]')
    assert Plan.make(same, ServedPolicy(URLS)).policy == Plan.make(same).policy


def test_an_unserved_policy_and_an_agent_without_a_policy_are_rejected(write: Write):
    with pytest.raises(UsageError, match="is served by the trainer"):
        Rollouts(write('[training]\npolicy = "tiny"'))
    with pytest.raises(UsageError, match="nothing to train"):
        Plan.make(write('[training]\npolicy = "tiny"', agent="nop"), ServedPolicy(URLS))


def test_sync_mode_generates_nothing_ahead(write: Write, tmp_path: Path):
    sync = '[training]\npolicy = "tiny"\nmode = "sync"'
    plan = Plan.make(write(sync), ServedPolicy(URLS))
    assert (plan.settings.depth, plan.settings.max_staleness) == (0, 0)
    # The run's own config can be read back.
    (tmp_path / "again.toml").write_text(dump_config(plan.config))
    assert (
        Plan.make(load_config(tmp_path / "again.toml"), ServedPolicy(URLS)).settings
        == plan.settings
    )
    for key in ("depth", "max_staleness"):
        with pytest.raises(UsageError, match=rf"\[run\] {key} is 2"):
            Plan.make(write(sync, **{key: 2}), ServedPolicy(URLS))
    assert Plan.make(write(sync, depth=0), ServedPolicy(URLS)).settings == plan.settings
    # Without training there is no trainer to alternate with.
    alone = write(f'[training]\nmode = "sync"\n[policy]\nurls = ["{URLS[0]}"]')
    assert Plan.make(alone).settings.depth == 1


def test_paths_of_training_and_evaluation_are_relative_to_the_file(write: Write, tmp_path: Path):
    config = write(
        '[training]\nmodel = "m"\nreference = "../r"\nweights = "~/w"\n'
        '[evaluation]\ntasks = "heldout"'
    )
    training = config.training
    assert training.model == str(tmp_path / "m")
    assert Path(training.reference or "").resolve() == tmp_path.parent / "r"
    assert training.weights == str(Path("~/w").expanduser())
    assert config.evaluation.tasks == str(tmp_path / "heldout")
    assert load_config(tmp_path / "run.toml").training.model_fields_set == {
        "model",
        "reference",
        "weights",
    }


def test_the_config_sets_the_number_of_checkpoints(write: Write, directory: RunDirectory):
    tables = '[training]\npolicy = "tiny"\nkeep = 3'
    checkpoints = checkpoints_of(directory, Plan.make(write(tables), ServedPolicy(URLS)))
    for number in range(1, 6):
        checkpoints.write(Version(0, number), 0, lambda _: None, Lineages())
    assert [made.version.number for made in checkpoints.all()] == [3, 4, 5]


def test_missing_held_out_tasks_are_named(write: Write, tmp_path: Path):
    policy = f'[policy]\nurls = ["{URLS[0]}"]\n'
    with pytest.raises(UsageError, match=r"^\[evaluation\] tasks: .*nowhere: no such folder"):
        Plan.make(write(f'{policy}[evaluation]\ntasks = "nowhere"'))
    plan = Plan.make(write(f'{policy}[evaluation]\ntasks = "heldout"'))
    assert (list(plan.tasks), list(plan.held_out.admitted)) == (["a"], ["b"])


def test_an_invalid_task_is_named_with_a_remedy(write: Write, tmp_path: Path):
    config = write(f'[policy]\nurls = ["{URLS[0]}"]\n[evaluation]\ntasks = "heldout"')
    folder = tmp_path / "heldout/b"
    (folder / "task.toml").write_text('[agent]\ntimeout_sec = "soon"\n')
    with pytest.raises(UsageError, match=r"^\[evaluation\] tasks: nothing was run") as caught:
        Plan.make(config)
    assert "--skip-invalid" not in str(caught.value)


def test_groups_of_one_are_rejected_except_for_ppo(write: Write):
    for algorithm in ("grpo", "gspo"):
        tables = f'[training]\npolicy = "tiny"\nalgorithm = "{algorithm}"'
        with pytest.raises(UsageError, match=rf"group_size is 1, and {algorithm} compares"):
            Plan.make(write(tables, group_size=1), ServedPolicy(URLS))
    Plan.make(
        write('[training]\npolicy = "tiny"\nalgorithm = "ppo"', group_size=1), ServedPolicy(URLS)
    )
    Plan.make(write(f'[policy]\nurls = ["{URLS[0]}"]', group_size=1))


@pytest.mark.parametrize(
    ("tables", "run", "message"),
    [
        ("", {"group_size": 10**11}, "group_size is 100000000000; it must be at most 4096"),
        ("", {"batch_groups": 10**11}, "alive at once, is 1,600,000,000,000; it must be at most"),
        (
            '[evaluation]\ntasks = "heldout"\nattempts = 100000000000',
            {},
            r"\[evaluation\] attempts is 100000000000; it must be at most 4096",
        ),
    ],
)
def test_more_rollouts_than_memory_can_hold_are_rejected(
    write: Write, tables: str, run: dict[str, object], message: str
):
    with pytest.raises(UsageError, match=message):
        Plan.make(write(tables, agent="oracle", **run))


def test_a_config_without_an_end_is_rejected_with_both_remedies(
    make_tasks: MakeTasks, tmp_path: Path
):
    make_tasks("a")
    (tmp_path / "run.toml").write_text('[run]\ntasks = "tasks"\n')
    with pytest.raises(UsageError, match=r"\[run\] steps or epochs"):
        Plan.make(load_config(tmp_path / "run.toml"))


def validate(folder: Path, *, valid: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> None:
    """Record these tasks of a folder as validated, or as quarantined."""
    reasons = dict.fromkeys(valid) | dict.fromkeys(failed, "the oracle is graded 0")
    made = [
        TaskRecord(
            task=name,
            backend="local",
            ok=reason is None,
            reason=reason,
            flaky=None,
            maximum=1.0,
            oracle=[],
            nop=[],
            digest=digest_task(folder / name),
            date="2031-02-03",
        )
        for name, reason in reasons.items()
    ]
    TaskRecords.add(RecordFolder.of(folder), made)


def test_a_run_that_requires_validation_is_not_started_with_unvalidated_tasks(
    write: Write, tmp_path: Path
):
    held_out = '[evaluation]\ntasks = "heldout"\n'
    required = f"{held_out}[breaker]\nrequire_validation = true"
    tasks, heldout = tmp_path / "tasks", tmp_path / "heldout"
    with pytest.raises(UsageError, match=r"nothing was run: 1 of 1 tasks") as refused:
        Plan.make(write(required, agent="oracle"))
    assert "  a: never validated" in str(refused.value)
    assert f"validate them: plimsoll validate {tasks} --backend local" in str(refused.value)
    validate(tasks, valid=("a",))
    with pytest.raises(UsageError, match=f"plimsoll validate {heldout} --backend local"):
        Plan.make(write(required, agent="oracle"))
    validate(heldout, valid=("b",))
    Plan.make(write(required, agent="oracle"))
    (tasks / "a/instruction.md").write_text("Do it well.\n")
    with pytest.raises(UsageError, match="a: changed since it was validated"):
        Plan.make(write(required, agent="oracle"))
    # It is not required by default.
    Plan.make(write(held_out, agent="oracle"))


@pytest.mark.parametrize(
    ("folder", "first", "second"), [("tasks", "a", "c"), ("heldout", "b", "e")]
)
def test_after_validation_a_run_starts_only_if_at_most_half_of_each_set_failed(
    write: Write, make_tasks: MakeTasks, tmp_path: Path, folder: str, first: str, second: str
):
    make_tasks("c", "d", into="tasks")
    make_tasks("e", "f", into="heldout")
    validate(tmp_path / "tasks", valid=("a", "c", "d"))
    validate(tmp_path / "heldout", valid=("b", "e", "f"))
    config = write('[evaluation]\ntasks = "heldout"', agent="oracle")
    validate(tmp_path / folder, failed=(first,))
    plan = Plan.make(config).validated()
    assert len(plan.left_out) == 1
    validate(tmp_path / folder, failed=(second,))
    with pytest.raises(UsageError) as refused:
        Plan.make(config).validated()
    said = str(refused.value)
    assert said.startswith(f"nothing was run: 2 of 3 tasks in {tmp_path / folder} cannot be graded")
    assert f"  {first}: quarantined: the oracle is graded 0" in said
