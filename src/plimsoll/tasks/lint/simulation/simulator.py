"""Simulator of a grader's script: follows all possible paths without running anything.

Each command succeeds, fails, or may do either; the simulation continues with each case. This
determines the reward that a script writes when a fetch or a test runner fails, through `if`,
`||`, `$?`, `case`, functions, traps and `set -e`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from plimsoll.tasks.grader.grader import Grader, is_runner
from plimsoll.tasks.lint.simulation.conditions import evaluate
from plimsoll.tasks.lint.simulation.effects import (
    Programs,
    compensate,
    matches_case,
    negated,
    output_of,
    pipeline_status,
    status_of,
    with_options,
    with_trap,
)
from plimsoll.tasks.lint.simulation.state import (
    UNKNOWN,
    State,
    reward_file_type,
    reward_value,
)
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import (
    AndOr,
    Assignment,
    Block,
    Case,
    Command,
    Function,
    Group,
    If,
    Loop,
    Not,
    Pipeline,
    Redirect,
    Statement,
    Substitution,
)

__all__ = ["AssumedResult", "RewardWrite", "Simulator"]

MAX_STATES = 128
MAX_DEPTH = 30
MAX_STEPS = 20_000
"""Limit of simulated statements; mutually recursive functions would never end."""
WRITES = (">", ">>", "&>", "&>>", ">|")


@dataclass(frozen=True, slots=True)
class AssumedResult:
    """The assumed result of a command. A failed fetch has a number and missing files."""

    status: bool | None
    fetch: int | None = None
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RewardWrite:
    """A reward written on some path through the script."""

    kind: str
    text: str
    file: str
    line: int
    before_tests: bool
    """The command always runs, and no test or check precedes it."""

    @property
    def value(self) -> float | None:
        """The reward as a number; None if unknown."""
        is_txt = self.kind == "txt"
        return reward_value(self.text if is_txt else None, None if is_txt else self.text)


Assume = Callable[[str, Command], AssumedResult | None]


class Simulator:
    """Simulates one grader under one set of assumptions."""

    def __init__(
        self,
        grader: Grader,
        assume: Assume,
        programs: frozenset[str] = frozenset(),
        broken: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        self.grader = grader
        self.assume = assume
        self.programs = Programs(grader, programs, broken or {})
        self.steps = 0
        self.writes: dict[RewardWrite, None] = {}
        self.functions: dict[str, tuple[str, Function]] = {}
        """Functions by name, with the script that defines them."""
        self.stack: list[str] = []
        """The stack of running scripts."""

    def run(self, state: State | None = None) -> tuple[State, ...]:
        """Return all possible end states of `test.sh`."""
        main = self.grader.main
        if main is None:
            return ()
        start = state or State()
        if (main.script.shebang or "").split()[-1:] == ["-e"]:
            start = replace(start, errexit=True)
        ends = self._script("test.sh", [start])
        return tuple(dict.fromkeys(s for end in ends for s in self._trap("EXIT", end)))

    # Scripts and blocks

    def _script(self, name: str, states: Sequence[State]) -> list[State]:
        source = self.grader.scripts.get(name)
        if source is None or len(self.stack) > MAX_DEPTH:
            return [replace(state, status=None) for state in states]
        self.functions |= {one.name: (name, one) for one in source.script.functions}
        self.stack.append(name)
        try:
            return self._block(source.script.body, states, False)
        finally:
            self.stack.pop()

    def _block(self, block: Block, states: Iterable[State], checked: bool) -> list[State]:
        current = list(states)
        for statement in block.statements:
            running = [state for state in current if not state.flow]
            if not running:
                break
            ended = [state for state in current if state.flow]
            done = [end for state in running for end in self._statement(statement, state, checked)]
            current = list(dict.fromkeys((*ended, *done)))[:MAX_STATES]
        return current

    def _statement(self, statement: Statement, state: State, checked: bool) -> list[State]:
        self.steps += 1
        if self.steps > MAX_STEPS:
            return [replace(state, status=None)]
        match statement:
            case Command():
                ends = self._command(statement, state)
                return [s for end in ends for s in self._errexit(end, checked)]
            case Assignment():
                ends = self._assignment(statement, state)
                return [s for end in ends for s in self._errexit(end, checked)]
            case Pipeline():
                ends = self._pipeline(statement, state)
                return [s for end in ends for s in self._errexit(end, checked)]
            case AndOr():
                return self._and_or(statement, state, checked)
            case Not():
                return [negated(end) for end in self._statement(statement.body, state, True)]
            case If():
                return self._if(statement, state, checked)
            case Loop():
                return self._loop(statement, state, checked)
            case Case():
                return self._case(statement, state, checked)
            case Group():
                return self._group(statement, state, checked)
            case Function():
                return [state]

    def _errexit(self, state: State, checked: bool) -> list[State]:
        """Apply `set -e`: an unchecked failure ends the script."""
        if checked or state.flow or not state.errexit or state.status is True:
            return [state]
        stopped = [
            replace(end, flow="exit") for end in self._trap("ERR", replace(state, status=False))
        ]
        return stopped if state.status is False else [*stopped, replace(state, status=True)]

    def _trap(self, name: str, state: State) -> list[State]:
        text = dict(state.traps).get(name)
        if text is None:
            return [state]
        rest = tuple(trap for trap in state.traps if trap[0] != name)
        inner = parse_script(text).body
        # Assumptions do not apply to the commands of a trap.
        self.stack.append("")
        try:
            ends = self._block(inner, [replace(state, flow="", traps=rest, errexit=False)], True)
        finally:
            self.stack.pop()
        return [replace(end, status=state.status) for end in ends]

    # Commands

    def _command(self, command: Command, state: State) -> list[State]:
        plain = command.unwrapped()
        states = self._substitutions(plain.substitutions, state)
        ends: list[State] = []
        for before in states:
            words = replace(plain, args=tuple(before.value(arg) for arg in plain.args))
            for end in self._simple(words, before):
                ends.append(self._redirect(words.redirects, words, end))
        return ends

    def _simple(self, plain: Command, state: State) -> list[State]:
        if plain.name != "tee":
            state = replace(state, out=output_of(plain))
        assumed = self.assume(self.stack[-1], plain)
        if assumed is not None:
            return [self._apply_assumption(plain, assumed, state)]
        special = self._builtin(plain, state)
        if special is not None:
            return special
        if plain.inner is not None:
            ends = self._block(plain.inner, [state], False)
            return [replace(end, flow="" if plain.name != "eval" else end.flow) for end in ends]
        if plain.name in self.functions:
            return self._call(*self.functions[plain.name], plain, state)
        called = self._called_script(plain)
        if called is not None:
            return self._run_script(plain, called, state)
        if plain.name in ("tee", "cp", "mv"):
            state = self._copy(plain, state)
        return [self.programs.run(plain, state)]

    def _apply_assumption(self, plain: Command, assumed: AssumedResult, state: State) -> State:
        failed = state.failed | {assumed.fetch} if assumed.fetch is not None else state.failed
        return replace(
            state,
            status=assumed.status,
            failed=failed,
            missing=state.missing | assumed.missing,
            tested=state.tested or is_runner(plain),
        )

    def _builtin(self, plain: Command, state: State) -> list[State] | None:
        match plain.name:
            case "exit" | "return":
                status = status_of(plain.args[0], state) if plain.args else state.status
                return [replace(state, flow=plain.name, status=status)]
            case "break" | "continue":
                return [replace(state, flow="break")]
            case "set":
                return [with_options(plain.args, state)]
            case "trap":
                return [with_trap(plain.args, state)]
            case "false":
                return [replace(state, status=False)]
            case "[" | "[[" | "test":
                return [replace(state, status=evaluate(plain.args, state), tested=True)]
            case "unset":
                for name in plain.args:
                    state = state.with_variable(name, UNKNOWN)
                return [replace(state, status=True)]
            case "command" | "which" | "type" | "hash":
                name = plain.args[-1] if plain.args else ""
                return [replace(state, status=self.programs.is_available(name, state))]
            case _:
                return None

    def _call(self, script: str, function: Function, plain: Command, state: State) -> list[State]:
        if len(self.stack) > MAX_DEPTH:
            return [replace(state, status=None)]
        for number, arg in enumerate(plain.args, start=1):
            state = state.with_variable(str(number), arg)
        self.stack.append(script)
        try:
            ends = self._block(function.body, [state], False)
        finally:
            self.stack.pop()
        return [replace(end, flow="" if end.flow == "return" else end.flow) for end in ends]

    def _called_script(self, plain: Command) -> str | None:
        words: tuple[str, ...] = (plain.name,)
        if plain.name in ("bash", "sh", "source", "."):
            words = tuple(arg for arg in plain.args if not arg.startswith("-"))[:1]
        for word in words:
            name = self.grader.file_named(word)
            if name is not None and name in self.grader.scripts:
                return name
        return None

    def _run_script(self, plain: Command, name: str, state: State) -> list[State]:
        sourced = plain.name in ("source", ".")
        start = state if sourced else replace(state, errexit="-e" in plain.args, traps=())
        ends = self._script(name, [start])
        if sourced:
            return ends
        restored = {"flow": "", "errexit": state.errexit, "traps": state.traps, "env": state.env}
        done = [s for end in ends for s in self._trap("EXIT", end)]
        return [replace(end, **restored) for end in done]

    def _copy(self, plain: Command, state: State) -> State:
        targets = plain.args if plain.name == "tee" else plain.args[-1:]
        for target in targets:
            kind = reward_file_type(target)
            if kind is not None:
                text = state.out if plain.name == "tee" else UNKNOWN
                state = self._write(kind, text, plain, state)
        return state

    # Redirects, words, variables

    def _redirect(self, redirects: tuple[Redirect, ...], plain: Command, state: State) -> State:
        for redirect in redirects:
            kind = reward_file_type(state.value(redirect.target))
            if (
                kind is None
                or redirect.operator not in WRITES
                or redirect.descriptor not in (None, 1)
            ):
                continue
            before = state.txt if kind == "txt" else state.json
            appended = redirect.operator.endswith(">>") and before
            state = self._write(kind, UNKNOWN if appended else state.out, plain, state)
        return state

    def _write(self, kind: str, text: str, plain: Command, state: State) -> State:
        source = self.grader.scripts.get(self.stack[-1])
        file = source.file if source is not None else ""
        early = not (state.tested or plain.conditional)
        self.writes[RewardWrite(kind, text, file, plain.line, early)] = None
        return replace(state, **{kind: text})

    def _substitutions(self, found: tuple[Substitution, ...], state: State) -> list[State]:
        states = [state]
        for one in found:
            ends = [
                self._leave_subshell(end, before)
                for before in states
                for end in self._block(one.body, [replace(before, out=UNKNOWN)], True)
            ]
            states = list(dict.fromkeys(ends))
        return states

    def _leave_subshell(self, end: State, before: State) -> State:
        """Leave a subshell: keep written files, restore everything else."""
        return replace(
            end,
            flow="",
            env=before.env,
            errexit=before.errexit,
            pipefail=before.pipefail,
            traps=before.traps,
        )

    def _assignment(self, found: Assignment, state: State) -> list[State]:
        if not found.substitutions:
            value = state.value(found.value)
            return [replace(state.with_variable(found.name, value), status=True)]
        ends = self._substitutions(found.substitutions, state)
        only = len(found.substitutions) == 1 and found.substitutions[0].text == found.value
        return [end.with_variable(found.name, end.out.strip() if only else UNKNOWN) for end in ends]

    # Compound statements

    def _pipeline(self, pipeline: Pipeline, state: State) -> list[State]:
        states = [(state, ())]
        for part in pipeline.parts:
            after: list[tuple[State, tuple[bool | None, ...]]] = []
            for before, seen in states:
                ends = self._statement(part, replace(before, flow=""), True)
                after += [(replace(end, flow=""), (*seen, end.status)) for end in ends]
            states = list(dict.fromkeys(after))[:MAX_STATES]
        return [replace(end, status=pipeline_status(seen, end), parts=seen) for end, seen in states]

    def _and_or(self, both: AndOr, state: State, checked: bool) -> list[State]:
        ends: list[State] = []
        for left in self._statement(both.left, state, True):
            if left.flow:
                ends.append(left)
                continue
            stops = (False, None) if both.is_and else (True, None)
            if left.status in stops:
                ends.append(replace(left, status=not both.is_and))
            if left.status is None or left.status is both.is_and:
                right = self._statement(both.right, replace(left, status=both.is_and), checked)
                new_failures = left.failed - state.failed if not both.is_and else frozenset[int]()
                ends += [compensate(end, left, new_failures, (both.right,)) for end in right]
        return list(dict.fromkeys(ends))

    def _if(self, statement: If, state: State, checked: bool) -> list[State]:
        ends: list[State] = []
        pending = [state]
        for condition, body in statement.branches:
            failing: list[State] = []
            for start in pending:
                for after in self._block(condition, [start], True):
                    if after.flow:
                        ends.append(after)
                        continue
                    new_failures = after.failed - start.failed
                    if after.status is not False:
                        done = self._block(body, [replace(after, status=True)], checked)
                        ends += [
                            compensate(end, after, new_failures, body.statements) for end in done
                        ]
                    if after.status is not True:
                        failing.append(replace(after, status=False))
            pending = list(dict.fromkeys(failing))
        if statement.otherwise is None:
            return [*ends, *(replace(one, status=True) for one in pending)]
        rest = statement.otherwise
        for start in pending:
            new_failures = start.failed - state.failed
            done = self._block(rest, [start], checked)
            ends += [compensate(end, start, new_failures, rest.statements) for end in done]
        return list(dict.fromkeys(ends))

    def _loop(self, loop: Loop, state: State, checked: bool) -> list[State]:
        ends: list[State] = []
        starts: list[State] = [state]
        if loop.condition is not None:
            starts = []
            for after in self._block(loop.condition, [state], True):
                continues = negated(after).status if loop.until else after.status
                if continues is not False:
                    starts.append(after)
                if continues is not True:
                    ends.append(replace(after, status=True))
        for end in self._block(loop.body, starts, checked):
            ends.append(replace(end, flow="") if end.flow == "break" else end)
        return list(dict.fromkeys(ends))

    def _case(self, case: Case, state: State, checked: bool) -> list[State]:
        subject = state.value(case.subject)
        ends: list[State] = []
        for patterns, body in case.items:
            match = matches_case(subject, patterns)
            if match is not False:
                ends += self._block(body, [state], checked)
            if match:
                return ends
        return [*ends, replace(state, status=True)]

    def _group(self, group: Group, state: State, checked: bool) -> list[State]:
        ends = self._block(group.body, [state], checked)
        if group.subshell:
            ends = [self._leave_subshell(end, state) for end in ends]
        holder = Command("{", (), 0, -1, conditional=True)
        return [
            self._redirect(group.redirects, holder, replace(end, out=UNKNOWN))
            if group.redirects
            else end
            for end in ends
        ]
