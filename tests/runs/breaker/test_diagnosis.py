"""The diagnosis names the rule, the numbers, the evidence, the files to stage and the next step."""

import pytest
from rows import void

from plimsoll.runs.breaker.diagnosis import RunContext, diagnose, remedies
from plimsoll.runs.breaker.watch import Trip, count_voids
from plimsoll.trials.verdicts import Cause

CONTEXT = RunContext(
    path="tasks",
    validate="plimsoll validate tasks --backend local",
    again="plimsoll eval tasks",
    keep_going="… --keep-going",
)
CURL = "the grader could not fetch `example.invalid` with curl, then wrote 0"
CLONE = (
    "a/environment/Dockerfile:2: RUN git clone https://x.invalid/p.git /opt/p failed (exit 128): "
    "fatal: unable to access 'https://x.invalid/p.git/': Could not resolve host: x.invalid"
)


def test_a_diagnosis_has_evidence_remedies_and_commands():
    rows = [void(reason=CURL)] * 5 + [void(Cause.SANDBOX, CLONE)] * 2
    trip = Trip("void-share", "7 of the last 8", count_voids(rows), rows[0])
    diagnosis = diagnose(trip, CONTEXT, look="runs/x/trials/t.1")
    assert (diagnosis.rule, diagnosis.said, diagnosis.look) == (
        "void-share",
        "7 of the last 8",
        "runs/x/trials/t.1",
    )
    assert diagnosis.evidence == [f"5 × void: grader · {CURL}", f"2 × void: sandbox · {CLONE}"]
    assert diagnosis.remedies == [
        "`example.invalid`, `https://x.invalid/p.git/` cannot be fetched in a sandbox: "
        "plimsoll stage tasks --to DIR",
        "find the tasks that can be graded: plimsoll validate tasks --backend local",
    ]
    assert diagnosis.go_on == [
        "after the fix: plimsoll eval tasks",
        "without a fix: … --keep-going",
    ]
    assert diagnosis.stopped


def test_rare_reasons_are_counted_and_their_fetches_still_named():
    rows = [void(reason=f"odd {n}") for n in range(5) for _ in range(2)] + [void(reason=CURL)]
    diagnosis = diagnose(Trip("r", "s", count_voids(rows)), CONTEXT, look=None)
    assert len(diagnosis.evidence) == 4
    assert diagnosis.evidence[-1] == "5 × void for 3 other reasons"
    assert "`example.invalid`" in diagnosis.remedies[0]


@pytest.mark.parametrize(
    "reason",
    [
        "the grader could not fetch what it needs with uv, then wrote 0",
        "RUN pip install x failed (exit 1): ERROR: No matching distribution found for x",
        "setup.sh failed (exit 1): Temporary failure in name resolution",
    ],
)
def test_an_unnamed_fetch_still_suggests_staging(reason: str):
    assert remedies([reason], "tasks") == [
        "a fetch fails in a sandbox: plimsoll stage tasks --to DIR"
    ]


def test_a_missing_module_suggests_lint():
    reason = "the grader could not import `log_parsers`, then wrote 0"
    assert remedies([reason], "tasks") == [
        "see where the missing part should come from: plimsoll lint tasks"
    ]


def test_other_failures_do_not_suggest_staging():
    assert remedies(["reward.txt is empty", "the grader ran past its 1 s"], "tasks") == []


def test_unstaged_fetches_are_named_if_a_file_is_missing():
    reason = "the grader could not import `agent`, then wrote 0"
    (stage, lint) = remedies([reason], "tasks", ["git https://h/r"])
    assert stage == "it may come from `git https://h/r`, not staged: plimsoll stage tasks --to DIR"
    assert "plimsoll lint tasks" in lint
    assert remedies(["the tests timed out"], "tasks", ["git https://h/r"]) == []
