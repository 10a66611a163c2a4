"""Judge: turns the observations of the verifier into a verdict. No sandbox, no I/O.

The rules apply in this order:

1. A grader that timed out or was killed did not grade.
2. A missing or unreadable reward is no reward.
3. A reward above 0 (and above the lower end of its range) is valid, whatever was printed.
4. A 0 after tests that ran is valid, whatever they printed. The one exception is a grader
   that breaks *after* its runner, while it reads the results: its own traceback, or its
   message that it has no parser, below the last summary line of a runner.
5. A 0 without a test that ran is searched for signs (`signs/`). A sign that the grader or
   the task is broken makes it void. A sign that the work is at fault keeps it.
6. A 0 without any sign is valid: most graders that compare two files print nothing.

The code under test prints to the same text. If a runner printed a summary, the code cannot turn
its 0 into a void verdict, except by printing a whole traceback through files under /tests
after the runner's last line. Without a summary, a line such as `curl: (6) Could not resolve
host: x.org` printed by the work is attributed to the grader. Frames and shell prefixes under
/tests narrow this; only a grader in its own environment closes it. An agent can also break
the grader's tools in a shared sandbox; the table of causes bounds its gain.
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
    """All observations of one run of a grader."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    timeout: float
    stdout: str
    stderr: str
    files: Mapping[str, bytes]
    """The files at the top of /logs/verifier by name; only result files have their content."""
    instruction: str
    """The instruction of the agent. The grader is not at fault if requested files are missing."""
    reward_range: tuple[float, float]
    unknown_keys: tuple[str, ...] = ()
    """Unknown keys of task.toml, listed in void verdicts."""


def judge(grading: Grading, ending: Ending) -> Verdict:
    """Return the verdict on one grading."""
    if grading.timed_out:
        reason = f"the grader ran past its {grading.timeout:g} s and was stopped"
        return _void(grading, ending, Cause.GRADER, reason)
    if grading.signal is not None:
        reason = f"the grader was killed by {_signal_name(grading.signal)}"
        return _void(grading, ending, Cause.GRADER, reason)
    reward = read_reward(grading.files, grading.reward_range)
    if isinstance(reward, NoReward):
        return _no_reward(grading, ending, reward)
    if reward.value > max(grading.reward_range[0], 0.0):
        return _graded(grading, ending, reward)
    search = _search(grading)
    sign = _decisive_sign(search)
    if sign is None or sign.blame is Blame.WORK:
        return _graded(grading, ending, reward, *_evidence(sign))
    ran = () if search.ran else (Evidence("no test was run"),)
    return _untrusted_reward(grading, ending, reward, sign, ran)


def _decisive_sign(search: SignSearch) -> Sign | None:
    """Return the sign that decides about a 0; with None or a sign of the work it is a grade."""
    if search.ran:
        return search.broke_after_tests() or search.never_started()
    return next(search.signs(), None)


def _no_reward(grading: Grading, ending: Ending, problem: NoReward) -> Void:
    """Void without a reward; a sign gives the reason and tells whether the task is at fault."""
    signs = _search(grading).signs()
    sign = next((sign for sign in signs if sign.blame is not Blame.WORK), None)
    cause = Cause.TASK if sign and sign.blame is Blame.TASK else Cause.GRADER
    reason = problem.reason if sign is None else f"{sign.clause}; {problem.reason}"
    if sign is None and grading.unknown_keys:
        reason += f"; task.toml may be why: {grading.unknown_keys[0]}"
    return _void(grading, ending, cause, reason, *_evidence(sign), *problem.evidence)


def _untrusted_reward(
    grading: Grading, ending: Ending, reward: Reward, sign: Sign, ran: tuple[Evidence, ...]
) -> Void:
    wrote = f"{reward.value:g}"
    by_the_grader = sign.clause.startswith("the grader ")
    tail = f", then wrote {wrote}" if by_the_grader else f"; the reward {wrote} does not count"
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


def _evidence(sign: Sign | None) -> tuple[Evidence, ...]:
    return () if sign is None else (sign.evidence,)


def _search(grading: Grading) -> SignSearch:
    return SignSearch(
        grading.stdout, grading.stderr, grading.instruction, grading.files.get("ctrf.json")
    )


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
