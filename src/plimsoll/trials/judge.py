"""Turns everything the verifier saw into a verdict. No sandbox, no I/O.

The order is the rule:

1. A grader that ran past its time, or was killed, did not grade.
2. A reward that is not there or cannot be read is no reward.
3. A reward above 0 (and above the lower end of its range) stands, whatever else was printed.
4. A 0 after tests that ran is honest, whatever they printed. The one exception is a grader
   that breaks *after* its runner, on reading the results: its own traceback, or its word
   that it has no parser, below the last line that a runner counted.
5. A 0 without a test that ran is examined for signs (`signs/`). A sign that the grader or
   the task is broken voids it. A sign that the work is at fault keeps it.
6. A 0 without any sign is honest: most graders that compare two files print nothing.

What the code under test prints is in the same text. With a runner's count it cannot turn
its 0 into a void one, short of printing, after the runner's last word, a whole traceback
through files under /tests. Without a count, a line such as `curl: (6) Could not resolve
host: x.org` printed by the work is taken for the grader's. Frames and shell prefixes under
/tests narrow this; only a grader in an environment of its own closes it. An agent can also
break the grader's tools in a shared sandbox; the table of causes bounds what it gains.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.core.endings import Ending
from plimsoll.trials.rewards import NoReward, Reward, read_reward
from plimsoll.trials.signs.output import Blame, Sign
from plimsoll.trials.signs.search import SignSearch
from plimsoll.trials.verdicts import Cause, Evidence, Graded, Verdict, Void

__all__ = ["Grading", "judge"]


@dataclass(frozen=True, slots=True)
class Grading:
    """Everything that was seen of one grader."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    timeout: float
    stdout: str
    stderr: str
    files: Mapping[str, bytes]
    """The files of /logs/verifier that matter, and those whose names come near to them."""
    instruction: str
    """What the agent was asked to make: that it is missing is no fault of the grader."""
    reward_range: tuple[float, float]
    unknown_keys: tuple[str, ...] = ()
    """Misspelt keys of task.toml, pointed out where grading fails."""


def judge(grading: Grading, ending: Ending) -> Verdict:
    """The verdict on one grading."""
    if grading.timed_out:
        reason = f"the grader ran past its {grading.timeout:g} s and was stopped"
        return _void(grading, ending, Cause.GRADER, reason)
    if grading.signal is not None:
        reason = f"the grader was killed by {_signal_name(grading.signal)}"
        return _void(grading, ending, Cause.GRADER, reason)
    reward = read_reward(grading.files, grading.reward_range)
    if isinstance(reward, NoReward):
        return _unreadable(grading, ending, reward)
    if reward.value > max(grading.reward_range[0], 0.0):
        return _graded(grading, ending, reward)
    findings = _findings(grading)
    sign = _decisive_sign(findings)
    if sign is None or sign.blame is Blame.WORK:
        return _graded(grading, ending, reward, *_seen(sign))
    ran = () if findings.ran else (Evidence("no test was run"),)
    return _not_a_grade(grading, ending, reward, sign, ran)


def _decisive_sign(findings: SignSearch) -> Sign | None:
    """What decides about a 0: None, or a sign of the work, leaves it a grade."""
    if findings.ran:
        return findings.broke_after_tests() or findings.never_started()
    return next(findings.signs(), None)


def _unreadable(grading: Grading, ending: Ending, problem: NoReward) -> Void:
    """No reward is void in any case; a deeper sign says why, and whether the task is at fault."""
    signs = _findings(grading).signs()
    sign = next((sign for sign in signs if sign.blame is not Blame.WORK), None)
    cause = Cause.TASK if sign and sign.blame is Blame.TASK else Cause.GRADER
    reason = problem.reason if sign is None else f"{sign.clause}; {problem.reason}"
    if sign is None and grading.unknown_keys:
        reason += f"; task.toml may be why: {grading.unknown_keys[0]}"
    return _void(grading, ending, cause, reason, *_seen(sign), *problem.evidence)


def _not_a_grade(
    grading: Grading, ending: Ending, reward: Reward, sign: Sign, ran: tuple[Evidence, ...]
) -> Void:
    wrote = f"{reward.value:g}"
    by_the_grader = sign.clause.startswith("the grader ")
    tail = f", then wrote {wrote}" if by_the_grader else f"; the {wrote} it wrote is no grade"
    cause = Cause.TASK if sign.blame is Blame.TASK else Cause.GRADER
    unused = Evidence(f"{reward.file} held {wrote} and was not used", f"verifier/{reward.file}")
    return _void(grading, ending, cause, sign.clause + tail, sign.evidence, *ran, unused)


def _void(grading: Grading, ending: Ending, cause: Cause, reason: str, *evidence: Evidence) -> Void:
    notes = [*evidence]
    if grading.exit_code:
        notes.append(_exit(grading))
    notes += [
        Evidence(f"not known, and ignored: {key}", "task.toml") for key in grading.unknown_keys
    ]
    return Void(cause, reason, tuple(notes), ending)


def _graded(grading: Grading, ending: Ending, reward: Reward, *seen: Evidence) -> Graded:
    notes = [*reward.notes, *seen]
    if grading.exit_code:
        notes.append(_exit(grading))
    return Graded(reward.value, ending, reward.values, tuple(notes))


def _exit(grading: Grading) -> Evidence:
    return Evidence(f"the grader exited with {grading.exit_code}")


def _seen(sign: Sign | None) -> tuple[Evidence, ...]:
    return () if sign is None else (sign.evidence,)


def _findings(grading: Grading) -> SignSearch:
    return SignSearch(
        grading.stdout, grading.stderr, grading.instruction, grading.files.get("ctrf.json")
    )


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
