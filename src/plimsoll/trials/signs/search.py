"""Everything that the signs find in one grading, in the order in which they decide.

1. The task's own files do not parse.
2. The work is surely at fault: it does not parse, or what was asked for is not there.
3. The grader lacks something: a fetch, a tool, a file, a module.
4. The work is likely at fault: an import of its own failed.
5. The runner did not start, or collected nothing.
6. The grader says itself that something could not be imported.

The work's sure faults come before a failed fetch, because a grader may try to fetch, fail,
and still run; its likely ones come after, because what could not be fetched may be just what
the work imports.
"""

from collections.abc import Iterator

from plimsoll.trials.runner_counts import (
    RunnerCount,
    any_ran,
    count_ctrf,
    count_runs,
)
from plimsoll.trials.signs.broken_scripts import (
    line_endings,
    missing_test_file,
    script_does_not_parse,
)
from plimsoll.trials.signs.collection import (
    collection_failed,
    nothing_collected,
    python_does_not_parse,
    runner_refused,
)
from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.failed_fetches import fetch_failed, fetch_failed_in_python
from plimsoll.trials.signs.failed_imports import (
    caught_import,
    import_failed,
    node_import,
    parsers_missing,
    ruby_load,
    suite_failed,
)
from plimsoll.trials.signs.missing_tools import interpreter_missing, tool_missing
from plimsoll.trials.signs.output import Blame, Output, Sign
from plimsoll.trials.signs.tracebacks import (
    Failure,
    Owner,
    PathOwners,
    failures,
)

__all__ = ["SignSearch"]


class SignSearch:
    """The output of one grader, searched. Counts and tracebacks are read once."""

    def __init__(self, stdout: str, stderr: str, instruction: str, ctrf: bytes | None) -> None:
        self._asked = Deliverables(instruction)
        self._outputs = (Output("stderr", stderr), Output("stdout", stdout))
        text = "\n".join(output.text for output in self._outputs)
        self._places = PathOwners(text, self._asked)
        self._counts = {output.name: count_runs(output.text) for output in self._outputs}
        report = count_ctrf(ctrf) if ctrf else None
        self._report: list[RunnerCount] = [report] if report else []
        self._failures = {output.name: failures(output) for output in self._outputs}

    @property
    def counts(self) -> list[RunnerCount]:
        return [*self._report, *(count for counts in self._counts.values() for count in counts)]

    @property
    def ran(self) -> bool:
        return any_ran(self.counts)

    def broke_after_tests(self) -> Sign | None:
        """A grader that fails on reading what its tests printed, below the last count."""
        for output in self._outputs:
            end = self._end_of_counts(output)
            for failure in self._failures[output.name]:
                if failure.position >= end and failure.native and self._all_graders(failure):
                    sign = import_failed(output, failure, self._places, self._asked)
                    if sign and sign.blame is Blame.GRADER:
                        return sign
            if sign := parsers_missing(output, end):
                return sign
        return None

    def never_started(self) -> Sign | None:
        """Tests whose set-up failed, all of them, for want of something that is the grader's."""
        if any(count.passed + count.failed for count in self.counts):
            return None
        found = (runner_refused(output, self._asked) for output in self._outputs)
        return next((sign for sign in found if sign), None)

    def signs(self) -> Iterator[Sign]:
        """Every sign, the one that decides first."""
        judged = list(self._judged_failures())
        yield from (sign for sign in self._scripts() if sign)
        yield from (sign for sign in judged if sign.blame is Blame.TASK)
        yield from (sign for sign in judged if sign.blame is Blame.WORK and sign.sure)
        yield from (sign for sign in self._lacking() if sign)
        yield from (sign for sign in judged if sign.blame is Blame.GRADER)
        yield from (sign for sign in judged if sign.blame is Blame.WORK and not sign.sure)
        yield from (sign for sign in self._runners() if sign)
        yield from (sign for sign in self._own_words() if sign)

    def _scripts(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield line_endings(output)
            yield script_does_not_parse(output)

    def _lacking(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield fetch_failed(output, self._asked)
            for failure in self._failures[output.name]:
                yield fetch_failed_in_python(output, failure, self._places, self._asked)
        for output in self._outputs:
            yield tool_missing(output, self._asked)
            yield interpreter_missing(output, self._asked)
            yield missing_test_file(output, self._asked)

    def _judged_failures(self) -> Iterator[Sign]:
        for output in self._outputs:
            collecting = any(count.interrupted for count in self._counts[output.name])
            for failure in self._failures[output.name]:
                sign = python_does_not_parse(output, failure, self._places) or import_failed(
                    output, failure, self._places, self._asked
                )
                if sign is None and collecting:
                    sign = collection_failed(output, failure, self._places)
                if sign:
                    yield sign
            others = (
                node_import(output, self._places, self._asked),
                ruby_load(output, self._places, self._asked),
                suite_failed(output, self._places),
            )
            yield from (sign for sign in others if sign)

    def _runners(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield runner_refused(output, self._asked)
        for output in self._outputs:
            yield nothing_collected(f"{output.name}.txt", self._counts[output.name], self._asked)
        yield nothing_collected("ctrf.json", self._report, self._asked)

    def _own_words(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield parsers_missing(output)
            explained = frozenset(failure.position for failure in self._failures[output.name])
            yield caught_import(output, explained, self._asked)

    def _end_of_counts(self, output: Output) -> int:
        last = max((count.line for count in self._counts[output.name]), default=0)
        position = 0
        for _ in range(last):
            position = output.text.find("\n", position) + 1 or len(output.text)
        return position

    def _all_graders(self, failure: Failure) -> bool:
        """Only files of the grader and libraries: no frame of the work, no inline code."""
        owners = {self._places.owner(frame.path) for frame in failure.frames}
        inline = any(frame.path in ("<string>", "<stdin>") for frame in failure.frames)
        return Owner.GRADER in owners and Owner.WORK not in owners and not inline
