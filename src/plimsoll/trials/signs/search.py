"""Search for all signs in the output of one grader, in the order of their precedence.

1. The task's own files do not parse.
2. The work is certainly at fault: it does not parse, or a deliverable is missing.
3. The grader lacks something: a fetch, a tool, a file or a module.
4. The work is probably at fault: one of its own imports failed.
5. The runner did not start, or collected nothing.
6. The grader itself reports a failed import.

Certain faults of the work precede a failed fetch, because a grader may fail to fetch and still
run. Probable faults follow it, because the work may import the content that was not fetched.
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
    """Searches the output of one grader. Counts and tracebacks are parsed once."""

    def __init__(self, stdout: str, stderr: str, instruction: str, ctrf: bytes | None) -> None:
        self._deliverables = Deliverables(instruction)
        self._outputs = (Output("stderr", stderr), Output("stdout", stdout))
        text = "\n".join(output.text for output in self._outputs)
        self._owners = PathOwners(text, self._deliverables)
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
        """Return the sign of a grader that fails after the last summary of its runner."""
        for output in self._outputs:
            end = self._end_of_counts(output)
            for failure in self._failures[output.name]:
                if failure.position >= end and failure.native and self._only_grader_frames(failure):
                    sign = import_failed(output, failure, self._owners, self._deliverables)
                    if sign and sign.blame is Blame.GRADER:
                        return sign
            if sign := parsers_missing(output, end):
                return sign
        return None

    def never_started(self) -> Sign | None:
        """Return the sign that the set-up of all tests failed because of the grader."""
        if any(count.passed + count.failed for count in self.counts):
            return None
        found = (runner_refused(output, self._deliverables) for output in self._outputs)
        return next((sign for sign in found if sign), None)

    def signs(self) -> Iterator[Sign]:
        """Yield all signs; the first one decides."""
        judged = list(self._judged_failures())
        yield from (sign for sign in self._scripts() if sign)
        yield from (sign for sign in judged if sign.blame is Blame.TASK)
        yield from (sign for sign in judged if sign.blame is Blame.WORK and sign.sure)
        yield from (sign for sign in self._missing_requirements() if sign)
        yield from (sign for sign in judged if sign.blame is Blame.GRADER)
        yield from (sign for sign in judged if sign.blame is Blame.WORK and not sign.sure)
        yield from (sign for sign in self._runners() if sign)
        yield from (sign for sign in self._grader_messages() if sign)

    def _scripts(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield line_endings(output)
            yield script_does_not_parse(output)

    def _missing_requirements(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield fetch_failed(output, self._deliverables)
            for failure in self._failures[output.name]:
                yield fetch_failed_in_python(output, failure, self._owners, self._deliverables)
        for output in self._outputs:
            yield tool_missing(output, self._deliverables)
            yield interpreter_missing(output, self._deliverables)
            yield missing_test_file(output, self._deliverables)

    def _judged_failures(self) -> Iterator[Sign]:
        for output in self._outputs:
            collecting = any(count.interrupted for count in self._counts[output.name])
            for failure in self._failures[output.name]:
                sign = python_does_not_parse(output, failure, self._owners) or import_failed(
                    output, failure, self._owners, self._deliverables
                )
                if sign is None and collecting:
                    sign = collection_failed(output, failure, self._owners)
                if sign:
                    yield sign
            others = (
                node_import(output, self._owners, self._deliverables),
                ruby_load(output, self._owners, self._deliverables),
                suite_failed(output, self._owners),
            )
            yield from (sign for sign in others if sign)

    def _runners(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield runner_refused(output, self._deliverables)
        for output in self._outputs:
            yield nothing_collected(
                f"{output.name}.txt", self._counts[output.name], self._deliverables
            )
        yield nothing_collected("ctrf.json", self._report, self._deliverables)

    def _grader_messages(self) -> Iterator[Sign | None]:
        for output in self._outputs:
            yield parsers_missing(output)
            explained = frozenset(failure.position for failure in self._failures[output.name])
            yield caught_import(output, explained, self._deliverables)

    def _end_of_counts(self, output: Output) -> int:
        last = max((count.line for count in self._counts[output.name]), default=0)
        position = 0
        for _ in range(last):
            position = output.text.find("\n", position) + 1 or len(output.text)
        return position

    def _only_grader_frames(self, failure: Failure) -> bool:
        """Whether all frames are files of the grader or of libraries, without inline code."""
        owners = {self._owners.owner(frame.path) for frame in failure.frames}
        inline = any(frame.path in ("<string>", "<stdin>") for frame in failure.frames)
        return Owner.GRADER in owners and Owner.WORK not in owners and not inline
