"""Task folders are found, named and loaded lazily; errors have file, line and key."""

import os
import pickle
from pathlib import Path

import pytest

from plimsoll.core.errors import TaskError, UsageError
from plimsoll.core.permissions import (
    NO_NETWORK,
    PUBLIC,
    NetworkMode,
    NetworkPolicy,
)
from plimsoll.core.toml_lines import line_of
from plimsoll.tasks.loader import find_tasks, load_task, load_tasks
from plimsoll.tasks.task_file import resolve_env


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def task(root: Path, toml: str = "", **more: str) -> Path:
    return put(root, {"task.toml": toml, "instruction.md": "Do it.\n", **more})


def problems(path: Path) -> tuple[str, ...]:
    with pytest.raises(TaskError) as caught:
        load_task(path)
    return caught.value.problems


def test_a_single_step_task_has_one_step_of_its_own_folders(tmp_path: Path):
    task(tmp_path / "t")
    put(tmp_path / "t", {
        "tests/test.sh": "", "solution/solve.sh": "", "environment/Dockerfile": "FROM x",
        "workdir/f": "",
    })  # fmt: skip
    loaded = load_task(tmp_path / "t")
    assert loaded.name == "t"
    assert not loaded.is_multi_step
    assert loaded.dockerfile == tmp_path / "t/environment/Dockerfile"
    assert loaded.compose_file is None
    (step,) = loaded.steps
    assert step.name == "main"
    assert step.instruction == "Do it.\n"
    assert step.tests_dirs == (tmp_path / "t/tests",)
    assert step.test_script == tmp_path / "t/tests/test.sh"
    assert step.solution_dir == tmp_path / "t/solution"
    assert step.workdir is None


def test_a_task_without_tests_loads(tmp_path: Path):
    (step,) = load_task(task(tmp_path / "t")).steps
    assert step.tests_dirs == ()
    assert step.test_script is None
    assert step.solution_dir is None


MULTI_STEP = """\
multi_step_reward_strategy = "final"
artifacts = ["/all"]
[agent]
timeout_sec = 100
user = "agent"
[verifier]
timeout_sec = 50
network_mode = "no-network"
env = { A = "a" }
[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/one"]
agent = { timeout_sec = 7 }
[[steps]]
name = "two"
[steps.verifier]
network_mode = "allowlist"
allowed_hosts = ["a.b"]
[steps.verifier.environment]
docker_image = "x"
"""


@pytest.fixture
def multi_step(tmp_path: Path) -> Path:
    return put(tmp_path / "m", {
        "task.toml": MULTI_STEP,
        "tests/test.sh": "all",
        "tests/helper.py": "",
        "solution/solve.sh": "",
        "steps/one/instruction.md": "First.",
        "steps/two/instruction.md": "Second.",
        "steps/two/tests/test.sh": "two",
        "steps/two/solution/solve.sh": "",
        "steps/two/workdir/setup.sh": "",
    })  # fmt: skip


def test_a_step_overlays_only_the_fields_that_it_sets(multi_step: Path):
    loaded = load_task(multi_step)
    one, two = loaded.steps
    assert loaded.is_multi_step
    assert loaded.reward_strategy == "final"
    assert (one.agent.timeout_sec, one.agent.user) == (7, "agent")
    assert (two.agent.timeout_sec, two.agent.user) == (100, "agent")
    assert (two.verifier.timeout_sec, two.verifier.env) == (50, {"A": "a"})
    assert (one.min_reward, two.min_reward) == (0.5, None)
    assert [a.source for a in one.artifacts] == ["/all", "/one"]
    assert [a.source for a in two.artifacts] == ["/all"]


def test_the_tests_of_a_step_overlay_those_of_the_task(multi_step: Path):
    one, two = load_task(multi_step).steps
    assert one.tests_dirs == (multi_step / "tests",)
    assert one.test_script == multi_step / "tests/test.sh"
    assert two.tests_dirs == (multi_step / "tests", multi_step / "steps/two/tests")
    assert two.test_script == multi_step / "steps/two/tests/test.sh"
    assert (one.solution_dir, two.solution_dir) == (None, multi_step / "steps/two/solution")
    assert (one.workdir, two.workdir) == (None, multi_step / "steps/two/workdir")


def test_the_innermost_network_policy_counts(multi_step: Path):
    one, two = load_task(multi_step).steps
    assert one.agent_network == PUBLIC
    assert one.verifier_network == NO_NETWORK
    assert two.verifier_network == NetworkPolicy(NetworkMode.ALLOWLIST, ("a.b",))


def test_a_step_that_changes_the_mode_drops_the_tasks_hosts(tmp_path: Path):
    toml = (
        'agent = { network_mode = "allowlist", allowed_hosts = ["a.b"] }\n'
        'steps = [{ name = "s", agent = { network_mode = "no-network" } }]\n'
    )
    path = put(tmp_path / "t", {"task.toml": toml, "steps/s/instruction.md": ""})
    (step,) = load_task(path).steps
    assert step.agent_network == NO_NETWORK
    assert step.agent.allowed_hosts == ()


def test_the_environment_sets_the_default_network_of_both_phases(tmp_path: Path):
    path = task(tmp_path / "t", 'environment.network_mode = "no-network"')
    loaded = load_task(path)
    assert loaded.network == NO_NETWORK
    assert loaded.steps[0].agent_network == NO_NETWORK
    assert loaded.steps[0].verifier_network == NO_NETWORK


def test_the_environment_of_a_verifier_sets_its_network(tmp_path: Path):
    path = task(tmp_path / "t", 'verifier.environment.network_mode = "no-network"')
    (step,) = load_task(path).steps
    assert step.agent_network == PUBLIC
    assert step.verifier_network == NO_NETWORK


def test_an_own_environment_makes_the_verifier_separate(multi_step: Path):
    one, two = load_task(multi_step).steps
    assert (one.separate_verifier, one.verifier_environment) == (False, None)
    assert two.separate_verifier
    assert two.verifier_environment is not None
    assert two.verifier_environment.docker_image == "x"


def test_a_step_may_return_to_the_shared_environment(tmp_path: Path):
    toml = (
        "verifier.environment = {}\n"
        'steps = [{ name = "s", verifier = { environment_mode = "shared" } }, { name = "u" }]\n'
    )
    path = put(
        tmp_path / "t",
        {"task.toml": toml, "steps/s/instruction.md": "", "steps/u/instruction.md": ""},
    )
    shared, separate = load_task(path).steps
    assert (shared.separate_verifier, shared.verifier_environment) == (False, None)
    assert separate.separate_verifier


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("<!-- terminal CANARY abc -->\n# Canary GUID 12\n\nDo it.\n", "Do it.\n"),
        ("<!--\n a canary\n-->\r\nDo it.", "Do it."),
        ("# Title\n<!-- canary -->\n", "# Title\n<!-- canary -->\n"),
        ("<!-- a note -->\nDo it.", "<!-- a note -->\nDo it."),
        ("<!-- a note -->\nThe canary sings. <!-- x -->\n", None),
        ("\n\n  indented", None),
    ],
)
def test_only_canary_comments_at_the_head_are_stripped(
    tmp_path: Path, text: str, instruction: str | None
):
    path = task(tmp_path / "t")
    (path / "instruction.md").write_bytes(text.encode())
    assert load_task(path).steps[0].instruction == (text if instruction is None else instruction)


def test_an_instruction_is_read_on_demand(tmp_path: Path):
    path = task(tmp_path / "t")
    (path / "instruction.md").write_bytes(b"fine\n\xff\xfe")
    (step,) = load_task(path).steps
    with pytest.raises(TaskError, match=r"instruction\.md:2: not UTF-8 text"):
        _ = step.instruction


def test_an_error_has_file_line_key_and_value(tmp_path: Path):
    path = task(tmp_path / "t", '# head\n[verifier]\n\ntimeout_sec = "ten"\n[agent]\nuser = []\n')
    assert problems(path) == (
        f"{path}/task.toml:6: agent.user: expected a user name or number, got []",
        f'{path}/task.toml:4: verifier.timeout_sec: expected a number greater than 0, got "ten"',
    )


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[agent]\ntimeout_sec = = 3", ":2: not valid TOML: Invalid value at column 15"),
        ("a = 1\nb = [1,", ":2: not valid TOML: "),
        ('agent.network_mode = "x"',
         ':1: agent.network_mode: expected "public", "no-network" or "allowlist", got "x"'),
        ("[task]\nversion = '1'", ":1: task.name: is required"),
        ("verifier = 3", ":1: verifier: expected a table, got 3"),
        ("\nagent.allowed_hosts = ['a.b']",
         ':2: agent.allowed_hosts: allowed_hosts needs network_mode = "allowlist"'),
        ("[environment]\nmemory = 'x'",
         ':2: environment.memory: expected a size such as "512M" or "2G", got "x"'),
        ("[environment.env]\nA = 1", ":2: environment.env.A: expected text, got 1"),
        ("[[steps]]\nname='a'\n[[steps]]\nname='a'",
         ':4: steps[1].name: an earlier step has the name "a" too'),
    ],
)  # fmt: skip
def test_every_kind_of_error_has_its_line(tmp_path: Path, toml: str, message: str):
    path = task(tmp_path / "t", toml)
    (problem,) = problems(path)
    assert problem.startswith(f"{path}/task.toml{message}")


def test_missing_files_are_reported(tmp_path: Path):
    (tmp_path / "none").mkdir()
    assert problems(tmp_path / "none")[0].startswith(f"{tmp_path}/none/task.toml: missing")
    path = put(tmp_path / "a", {"task.toml": ""})
    assert problems(path)[0].startswith(f"{path}/instruction.md: missing")
    toml = 'steps = [{ name = "here" }, { name = "gone" }]'
    path = put(tmp_path / "b", {"task.toml": toml, "steps/here/x": "", "instruction.md": ""})
    assert problems(path) == (
        f"{path}/steps/here/instruction.md: missing; it tells the agent what to do",
        f'{path}/steps/gone: missing; task.toml names a step "gone"',
    )


def test_a_text_that_is_not_utf8_is_an_error_with_its_line(tmp_path: Path):
    path = task(tmp_path / "t")
    (path / "task.toml").write_bytes(b"# a\n# \xff\n")
    assert problems(path) == (f"{path}/task.toml:2: not UTF-8 text",)


def test_unknown_keys_are_kept_and_reported(tmp_path: Path):
    toml = (
        "[verifier]\ntimeout_secs = 5\n[verifer]\nx = 1\n[environment]\nzzz = 1\n"
        "[[artifacts]]\nsource = '/a'\nexcludes = []\n[metadata]\nfree = 1\n"
        "[[steps]]\nname = 's'\n[steps.agent]\ntimeout = 3\n"
    )
    path = put(tmp_path / "t", {"task.toml": toml, "steps/s/instruction.md": ""})
    loaded = load_task(path)
    file = path / "task.toml"
    assert {key.describe() for key in loaded.unknown_keys} == {
        f"{file}:2: unknown key verifier.timeout_secs (did you mean timeout_sec?)",
        f"{file}:3: unknown key verifer (did you mean verifier?)",
        f"{file}:6: unknown key environment.zzz",
        f"{file}:9: unknown key artifacts[0].excludes (did you mean exclude?)",
        f"{file}:15: unknown key steps[0].agent.timeout (did you mean timeout_sec?)",
    }
    assert loaded.config.verifier.model_extra == {"timeout_secs": 5}


def test_a_task_without_unknown_keys_reports_none(tmp_path: Path):
    path = task(tmp_path / "t", 'version = "1.0"\n[environment]\nmemory = "1G"\n[metadata]\nx = 1')
    assert load_task(path).unknown_keys == ()


def test_a_task_is_found_at_or_below_a_folder_and_never_inside_another(tmp_path: Path):
    task(tmp_path / "b")
    task(tmp_path / "b/nested")
    task(tmp_path / "a/deep/x")
    task(tmp_path / ".hidden/y")
    (tmp_path / "a/circle").symlink_to(tmp_path)
    (tmp_path / "a/nowhere").symlink_to(tmp_path / "a/nowhere")
    found = [path.relative_to(tmp_path).as_posix() for path in find_tasks(tmp_path)]
    assert found == ["a/deep/x", "b"]


def test_a_task_can_be_sent_to_another_process(multi_step: Path):
    loaded = load_task(multi_step)
    again = pickle.loads(pickle.dumps(loaded))
    assert again.config == loaded.config
    assert [step.instruction for step in again.steps] == ["First.", "Second."]


def test_a_linked_task_folder_is_found(tmp_path: Path):
    task(tmp_path / "store/t")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/linked").symlink_to(tmp_path / "store/t")
    assert find_tasks(tmp_path / "set") == [tmp_path / "set/linked"]


def test_names_are_unique_in_a_set(tmp_path: Path):
    for name in ("a/x", "b/x", "c/y", "a__x"):
        task(tmp_path / name)
    names = [loaded.name for loaded in load_tasks(tmp_path).tasks]
    assert sorted(names) == ["a__x", "a__x_", "b__x", "y"]


def test_the_current_folder_has_its_real_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(task(tmp_path / "here"))
    assert [loaded.name for loaded in load_tasks(Path()).tasks] == ["here"]


def test_invalid_tasks_are_listed_with_the_valid_ones(tmp_path: Path):
    task(tmp_path / "good")
    task(tmp_path / "bad", "agent.timeout_sec = 0")
    loaded = load_tasks(tmp_path)
    assert [t.name for t in loaded.tasks] == ["good"]
    (invalid,) = loaded.invalid
    assert (invalid.name, invalid.path) == ("bad", tmp_path / "bad")
    assert "agent.timeout_sec" in invalid.problems[0]


def test_a_pattern_selects_by_name(tmp_path: Path):
    for name in ("fix-a", "fix-b", "other"):
        task(tmp_path / name)
    assert [t.name for t in load_tasks(tmp_path, "fix-*").tasks] == ["fix-a", "fix-b"]
    with pytest.raises(UsageError, match='no task name matches "nope"; tasks here: fix-a'):
        load_tasks(tmp_path, "nope")


def test_a_folder_without_tasks_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="no such folder"):
        load_tasks(tmp_path / "gone")
    with pytest.raises(UsageError, match="no task found"):
        load_tasks(tmp_path)
    file = task(tmp_path / "t") / "task.toml"
    with pytest.raises(UsageError, match="not a folder"):
        load_tasks(file)


def test_env_tables_use_variables_of_the_host():
    env = {
        "A": "${X}",
        "B": "${Y:-dflt}",
        "C": "pre-${X}-${Z:-}",
        "D": "$X {X}",
        "E": "${EMPTY:-e}",
    }
    assert resolve_env(env, {"X": "x", "EMPTY": ""}, "t.toml: verifier.env") == {
        "A": "x",
        "B": "dflt",
        "C": "pre-x-",
        "D": "$X {X}",
        "E": "e",
    }


def test_all_unset_variables_are_reported():
    with pytest.raises(TaskError) as caught:
        resolve_env({"A": "${X}", "B": "${Y}"}, {}, "t/task.toml: verifier.env")
    assert caught.value.problems == (
        "t/task.toml: verifier.env.A: the variable X is not set; set it, or write ${X:-default}",
        "t/task.toml: verifier.env.B: the variable Y is not set; set it, or write ${Y:-default}",
    )


LINES = '''\
a = "x # [no]"
text = """
[not.a.table]
b = 1
"""
list = [
  1, # ]
  [2],
]
"quoted key" = 1
[t]
x.y = 3
literal = \'\'\'
[[t]]\'\'\'
z = { in = 1 }
[[s]]
n = 1
  [s.sub]
  k = 1
[[s]]
n = 2
  [[s.inner]]
  m = 1
  [[s.inner]]
  m = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 1),
        (("text",), 2),
        (("list", 1), 6),
        (("quoted key",), 10),
        (("t",), 11),
        (("t", "x"), 12),
        (("t", "x", "y"), 12),
        (("t", "literal"), 13),
        (("t", "z", "in"), 15),
        (("s", 0), 16),
        (("s", 0, "n"), 17),
        (("s", 0, "sub", "k"), 19),
        (("s", 1, "n"), 21),
        (("s", 1, "inner", 1, "m"), 25),
        (("s", 1, "gone"), 20),
        (("gone",), None),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_keys_line_is_found(path: tuple[str | int, ...], line: int | None, ending: str):
    assert line_of(LINES.replace("\n", ending), path) == line


def test_task_names_are_printable(tmp_path: Path):
    for name in (b"plain", b"esc\x1b[2J", b"line\nbreak", b"half\xff"):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        (folder / "environment").mkdir(parents=True)
        (folder / "environment/Dockerfile").write_text("FROM x\n")
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "task.toml").write_text("")
    loaded = load_tasks(tmp_path)
    assert {task.name for task in loaded.tasks} == {"plain", r"esc\x1b[2J", r"line\nbreak"}
    (invalid,) = loaded.invalid
    assert invalid.name == r"half\xff"
    assert invalid.problems == (f"{tmp_path}/half\\xff: the folder's name is not UTF-8; rename it",)
