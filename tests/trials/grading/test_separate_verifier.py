"""Artifacts: copied to a separate verifier, and kept."""

import pytest

from helpers import check_graded, check_void, need_several_users
from plimsoll.trials.artifacts import Bounds
from plimsoll.trials.verdicts import Cause

PASS = "echo 1 > /logs/verifier/reward.txt\n"


async def test_collect_hooks_run_before_the_tests_are_uploaded(write_task, run):
    need_several_users()
    toml = (
        "[[verifier.collect]]\ncommand = 'ls -A /tests > /app/seen; id -un >> /app/seen'\n"
        'user = "daemon"\n[[verifier.collect]]\ncommand = "echo second >> /app/seen"\n'
    )
    dockerfile = "FROM host\nWORKDIR /app\nRUN chmod 777 .\n"
    ran = await run(write_task(test=f"{PASS}cat /app/seen", toml=toml, dockerfile=dockerfile))
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == "daemon\nsecond\n"


@pytest.mark.parametrize(
    ("hook", "word"), [("echo no dump >&2; exit 4", "no dump"), ("sleep 60", "timed out")]
)
async def test_a_collect_hook_that_fails_voids_the_trial(write_task, run, hook, word):
    toml = f"[[verifier.collect]]\ncommand = '{hook}'\ntimeout_sec = 0.2\n"
    check_void(await run(write_task(toml=toml)), Cause.SANDBOX, hook, word)


SEPARATE = 'artifacts = ["/app/made"]\n[verifier]\nenvironment_mode = "separate"\n'


async def test_a_separate_verifier_sees_the_artifacts_and_nothing_else(write_task, run):
    files = {"tests/Dockerfile": "FROM host\nRUN mkdir /grader\nWORKDIR /grader\n"}
    test = f"{PASS}pwd; cat /app/made; ls /app; [ -e /tests/test.sh ] && echo tests\n"
    ran = await run(
        write_task(test=test, toml=SEPARATE, files=files),
        "echo made > made; echo secret > other; (sleep 60 &) ",
    )
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == "/grader\nmade\nmade\ntests\n"
    assert ran.read("artifacts/made") == "made\n"


async def test_a_separate_verifier_runs_no_program_that_the_agent_replaced(write_task, run):
    forge = "#!/bin/sh\\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    agent = (
        f"for x in cat grep python3 bash; do rm -f /usr/bin/$x; printf '{forge}' > /usr/bin/$x; "
    )
    agent += "chmod 755 /usr/bin/$x; done; echo wrong > /app/made"
    test = "grep -q right /app/made && x=1 || x=0; echo $x > /logs/verifier/reward.txt"
    check_graded(await run(write_task(test=test, toml=SEPARATE), agent), 0.0)


async def test_a_folder_is_copied_with_its_contents(write_task, run):
    toml = (
        '[[artifacts]]\nsource = "/app/site"\nexclude = ["*.tmp"]\n'
        '[verifier]\nenvironment_mode = "separate"\n'
    )
    agent = "mkdir -p site/deep; touch site/a.tmp site/deep/b; ln -s /etc/passwd site/c"
    ran = await run(write_task(test=f"{PASS}cd /app/site; find . | sort", toml=toml), agent)
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt").split() == [".", "./deep", "./deep/b"]


async def test_a_missing_artifact_is_graded_by_the_tests(write_task, run):
    test = "([ -e /app/made ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
    ran = await run(write_task(test=test, toml=SEPARATE))
    check_graded(ran, 0.0)


@pytest.mark.parametrize(
    "agent",
    [
        "ln -s made made",
        "mkfifo made",
        "mkdir made; chmod 0 made",
        "mkdir -p made; cd made; for i in $(seq 100); do mkdir d; cd d; done",
        "truncate -s 8T made",
        "rm -rf /logs/artifacts; echo > /logs/artifacts; mkdir made",
        "mkdir -p /logs/artifacts/made/made made",
    ],
    ids=[
        "link-to-itself",
        "fifo",
        "closed",
        "deep",
        "huge",
        "file-for-the-usual-folder",
        "folder-of-the-same-name",
    ],
)
async def test_an_odd_artifact_does_not_void_the_trial(write_task, run, agent):
    """Otherwise an agent could choose a retry instead of a 0."""
    test = "([ -f /app/made ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
    ran = await run(write_task(test=test, toml=SEPARATE), agent)
    check_graded(ran, 0.0)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(size=1000), "/app/site: more than 1,000 bytes"),
        (Bounds(entries=3), "/app/site: more than 3 files"),
    ],
)
@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_an_artifact_beyond_the_bounds_is_left_out_as_a_whole_and_named(
    write_task, run, mode, bounds, words
):
    toml = f'artifacts = ["/app/site", "/app/made"]\n[verifier]\nenvironment_mode = "{mode}"\n'
    agent = (
        "mkdir site; for x in a b c d; do head -c 600 /dev/zero > site/$x; done; echo made > made"
    )
    ran = await run(write_task(test=f"{PASS}ls -A /app", toml=toml), agent, bounds=bounds)
    check_graded(ran, 1.0)
    assert ran.read("artifacts/made") == "made\n"
    assert not (ran.folder / "artifacts/site").exists()
    assert words in ran.read("not-kept.txt")
    assert "/app/made" not in ran.read("not-kept.txt")
    if mode == "separate":
        assert ran.read("verifier/stdout.txt") == "made\n"


async def test_an_artifact_within_the_bounds_is_kept(write_task, run):
    agent = "mkdir site; for x in a b; do head -c 400 /dev/zero > site/$x; done"
    task = write_task(toml='artifacts = ["/app/site"]\n')
    ran = await run(task, agent, bounds=Bounds(size=800, entries=2))
    check_graded(ran, 1.0)
    assert {file.name for file in (ran.folder / "artifacts/site").iterdir()} == {"a", "b"}
    assert not (ran.folder / "not-kept.txt").exists()


@pytest.mark.parametrize("path", ["/app/made", "/logs/agent", "/logs/artifacts"])
async def test_a_link_does_not_copy_other_folders(write_task, run, path):
    agent = f"truncate -s 20M /srv/large; rm -rf {path}; ln -s /srv {path}"
    ran = await run(write_task(toml='artifacts = ["/app/made"]\n'), agent)
    check_graded(ran, 1.0)
    size = sum(file.stat().st_size for file in ran.folder.rglob("*") if file.is_file())
    assert size < 1 << 20


async def test_artifacts_of_the_same_name_do_not_void_the_trial(write_task, run):
    agent = "mkdir -p /logs/artifacts/made; touch /logs/artifacts/made/x; echo file > made"
    ran = await run(write_task(toml='artifacts = ["/app/made"]\n'), agent)
    check_graded(ran, 1.0)


async def test_a_separate_verifier_has_its_own_image_and_variables(write_task, run):
    toml = (
        '[verifier.environment]\ndocker_image = "host"\nworkdir = "/srv"\n'
        '[verifier.environment.env]\nA = "b"\n'
    )
    ran = await run(write_task(test=f"{PASS}pwd; echo $A", toml=toml))
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == "/srv\nb\n"


@pytest.mark.parametrize("source", ["..", "/app/..", "/", "//"])
async def test_the_root_of_the_sandbox_is_no_artifact(write_task, run, source):
    ran = await run(write_task(toml=f'artifacts = ["{source}"]\n'))
    check_void(ran, Cause.SANDBOX, "artifact / of the service")
    assert ran.read("verifier/logs/reward.txt") == "1\n"


async def test_a_path_to_an_artifact_may_go_up(write_task, run):
    task = write_task(toml='artifacts = ["site/../made/.."]\n')
    ran = await run(task, "mkdir made; echo x > made/x; echo y > y")
    check_graded(ran, 1.0)
    assert ran.read("artifacts/app/made/x") == "x\n"
    assert ran.read("artifacts/app/y") == "y\n"


@pytest.mark.parametrize(
    ("before", "agent", "seen"),
    [
        ("mkdir made", "rm -r made; echo > made", "file"),
        ("echo > made", "rm made; mkdir made", "folder"),
        ("ln -s /etc made", "rm made; echo > made", "file"),
    ],
    ids=["folder-to-file", "file-to-folder", "link-to-file"],
)
async def test_an_artifact_replaces_files_of_the_image(write_task, run, before, agent, seen):
    """Otherwise an agent could cause a retry by changing the type of a path."""
    test = f"{PASS}[ -L /app/made ] && echo link; [ -d /app/made ] && echo folder || echo file\n"
    dockerfile = f"FROM host\nWORKDIR /app\nRUN {before}\n"
    ran = await run(write_task(test=test, toml=SEPARATE, dockerfile=dockerfile), agent)
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == f"{seen}\n"
