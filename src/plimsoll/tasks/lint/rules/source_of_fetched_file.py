"""`source` of a file that only a fetch would have made."""

from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.rules.fetching import UV_FILES
from plimsoll.tasks.lint.simulation.effects import with_options
from plimsoll.tasks.lint.simulation.state import State

__all__ = ["RULE"]

RUST_FILES = tuple(f"{home}/.cargo/env" for home in ("$HOME", "${HOME}", "~", "/root"))


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        yield from _in(graded)


def _in(graded: GradedStep) -> Iterator[Violation]:
    made: set[str] = set()
    fetches = {(f.fetch.file, f.fetch.line): f.fetch for f in graded.fetches}
    for source in graded.grader.scripts.values():
        stops = False
        for command in source.script.commands:
            fetch = fetches.get((source.file, command.line))
            if fetch is not None:
                made |= {fetch.target} if fetch.target else set()
                made |= set(UV_FILES) if fetch.kind is Kind.UV_TOOL else set()
                made |= set(RUST_FILES) if any("rustup" in what for what in fetch.what) else set()
            plain = command.unwrapped()
            if plain.name == "set":
                stops = with_options(plain.args, State(errexit=stops)).errexit
            if plain.name in ("source", ".") and plain.args and not (plain.guarded or stops):
                path = plain.args[0]
                if any(path == known or path.startswith(f"{known}/") for known in made):
                    message = f"`{plain.name} {path}` reads a file that only the fetch makes"
                    yield Violation(source.file, command.line, message)


RULE = Rule(
    id="source-of-fetched-file",
    severity=Severity.WARNING,
    why=(
        "When the fetch fails the file is not there. A shell says so and goes on, and what the "
        "file was to set up is missing from then on."
    ),
    fix="Stop when the file is not there: `source FILE || exit 1`. Or install it at build.",
    check=_check,
)
