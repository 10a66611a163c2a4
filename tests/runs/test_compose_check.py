"""Tasks with several containers on a host without Compose: rejected before anything starts."""

from pathlib import Path

import pytest
from rollout_runs import MakeTasks

from plimsoll.cli.main import main
from plimsoll.config.file import load_config
from plimsoll.core.errors import UsageError
from plimsoll.runs.plan import Plan
from plimsoll.sandboxes.docker.compose import compose_command
from plimsoll.tasks.loader import load_tasks
from plimsoll.workers.worker.backends import check_compose


@pytest.fixture
def tasks(make_tasks: MakeTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tasks with a compose file and one without, on a host that has no Compose."""
    make_tasks("a", "b", "plain")
    for name in ("a", "b"):
        folder = tmp_path / "tasks" / name / "environment"
        folder.mkdir()
        (folder / "docker-compose.yaml").write_text("services: {main: {image: debian:12}}\n")
    monkeypatch.setattr(compose_command, "_candidates", lambda *_: iter(()))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tasks"


@pytest.mark.parametrize("command", ["eval", "validate"])
@pytest.mark.usefixtures("tasks")
def test_a_command_without_compose_is_rejected_and_leaves_no_files(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([command, "tasks", "--backend", "docker"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert "nothing was run: tasks with a docker-compose.yaml need Docker Compose V2" in output
    assert "a and 1 more cannot run here" in output
    assert sorted(tmp_path.rglob("*")) == before  # no run, and no quarantine


@pytest.mark.usefixtures("tasks")
def test_a_run_with_workers_on_this_host_is_rejected(tmp_path: Path):
    text = '[run]\ntasks = "tasks"\nbackend = "docker"\nagent = "nop"\nsteps = 1\n'
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match="Docker Compose V2"):
        Plan.make(load_config(tmp_path / "run.toml"))
    (tmp_path / "run.toml").write_text(text + '[workers]\nengine = "ray"\n')
    Plan.make(load_config(tmp_path / "run.toml"))


def test_other_tasks_and_other_backends_need_no_compose(tasks: Path):
    loaded = load_tasks(tasks).tasks
    check_compose("local", loaded)
    check_compose("docker", [task for task in loaded if task.name == "plain"])
    with pytest.raises(UsageError, match="nothing was run"):
        check_compose("docker", loaded)
