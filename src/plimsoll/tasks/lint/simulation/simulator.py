"""Goes through a grader's script without running it, along every way that it may take.

Each command succeeds, fails, or may do either; what follows is done for each case. That is
enough to tell what a script writes when a fetch fails or a test runner does, through `if`,
`||`, `$?`, `case`, functions, traps and `set -e` alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from plimsoll.tasks.grader.grader import Grader
from plimsoll.tasks.grader.test_runners import is_runner
from plimsoll.tasks.lint.simulation.conditions import holds
from plimsoll.tasks.lint.simulation.effects import (
    Programs,
    fits,
    made_up,
    negated,
    piped,
    printed,
    status_of,
    with_options,
    with_trap,
)
from plimsoll.tasks.lint.simulation.state import (
    UNKNOWN,
    State,
    reward_name,
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
"""Statements that one run looks at; functions that call each other could go on for ever."""
WRITES = (">", ">>", "&>", "&>>", ">|")


@dataclass(frozen=True, slots=True)
class AssumedResult:
    """How a command ends, given beforehand; a failing fetch has a number and leaves things out."""

    status: bool | None
    fetch: int | None = None
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RewardWrite:
    """A reward that was written on some way through the script."""

    kind: str
    text: str
    file: str
    line: int
    before_tests: bool
    """Nothing had been tested yet, and the command always runs."""

    @property
    def value(self) -> float | None:
        """The number that it is; None where that is not known."""
        is_txt = self.kind == "txt"
        return reward_value(self.text if is_txt else None, None if is_txt else self.text)


Assume = Callable[[str, Command], AssumedResult | None]


class Simulator:
    """One grader under one set of assumptions."""

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
        """Functions by name, each with the script that holds it."""
        self.names: list[str] = []
        """The scripts under way, the innermost last."""

    def run(self, state: State | None = None) -> tuple[State, ...]:
        """Every state in which `test.sh` may end."""
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
        if source is None or len(self.names) > MAX_DEPTH:
            return [replace(state, status=None) for state in states]
        self.functions |= {one.name: (name, one) for one in source.script.functions}
        self.names.append(name)
        try:
            return self._block(source.script.body, states, False)
        finally:
            self.names.pop()

    def _block(self, block: Block, states: Iterable[State], checked: bool) -> list[State]:
        current = list(states)
        for statement in block.statements:
            going = [state for state in current if not state.flow]
            if not going:
                break
            ended = [state for state in current if state.flow]
            done = [end for state in going for end in self._statement(statement, state, checked)]
            current = list(dict.fromkeys((*ended, *done)))[:MAX_STATES]
        return current

    def _statement(self, statement: Statement, state: State, checked: bool) -> list[State]:
        self.steps += 1
        if self.steps > MAX_STEPS:
            return [replace(state, status=None)]
        match statement:
            case Command():
                ends = self._command(statement, state)
                return [s for end in ends for s in self._checked(end, checked)]
            case Assignment():
                ends = self._assignment(statement, state)
                return [s for end in ends for s in self._checked(end, checked)]
            case Pipeline():
                ends = self._pipeline(statement, state)
                return [s for end in ends for s in self._checked(end, checked)]
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

    def _checked(self, state: State, checked: bool) -> list[State]:
        """`set -e` ends a script at a failure that nothing looks at."""
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
        # Its commands are not those of the script, so nothing is assumed of them.
        self.names.append("")
        try:
            ends = self._block(inner, [replace(state, flow="", traps=rest, errexit=False)], True)
        finally:
            self.names.pop()
        return [replace(end, status=state.status) for end in ends]

    # Commands

    def _command(self, command: Command, state: State) -> list[State]:
        plain = command.unwrapped()
        states = self._substitutions(plain.substitutions, state)
        ends: list[State] = []
        for before in states:
            words = replace(plain, args=tuple(before.value(arg) for arg in plain.args))
            for end in self._simple(words, before):
                ends.append(self._redirected(words.redirects, words, end))
        return ends

    def _simple(self, plain: Command, state: State) -> list[State]:
        if plain.name != "tee":
            state = replace(state, out=printed(plain))
        assumed = self.assume(self.names[-1], plain)
        if assumed is not None:
            return [self._assumed(plain, assumed, state)]
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
            state = self._copied(plain, state)
        return [self.programs.run(plain, state)]

    def _assumed(self, plain: Command, assumed: AssumedResult, state: State) -> State:
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
                return [replace(state, status=holds(plain.args, state), tested=True)]
            case "unset":
                for name in plain.args:
                    state = state.with_variable(name, UNKNOWN)
                return [replace(state, status=True)]
            case "command" | "which" | "type" | "hash":
                name = plain.args[-1] if plain.args else ""
                return [replace(state, status=self.programs.is_there(name, state))]
            case _:
                return None

    def _call(self, script: str, function: Function, plain: Command, state: State) -> list[State]:
        if len(self.names) > MAX_DEPTH:
            return [replace(state, status=None)]
        for number, arg in enumerate(plain.args, start=1):
            state = state.with_variable(str(number), arg)
        self.names.append(script)
        try:
            ends = self._block(function.body, [state], False)
        finally:
            self.names.pop()
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
        back = {"flow": "", "errexit": state.errexit, "traps": state.traps, "env": state.env}
        done = [s for end in ends for s in self._trap("EXIT", end)]
        return [replace(end, **back) for end in done]

    def _copied(self, plain: Command, state: State) -> State:
        targets = plain.args if plain.name == "tee" else plain.args[-1:]
        for target in targets:
            kind = reward_name(target)
            if kind is not None:
                text = state.out if plain.name == "tee" else UNKNOWN
                state = self._written(kind, text, plain, state)
        return state

    # Redirects, words, variables

    def _redirected(self, redirects: tuple[Redirect, ...], plain: Command, state: State) -> State:
        for redirect in redirects:
            kind = reward_name(state.value(redirect.target))
            if (
                kind is None
                or redirect.operator not in WRITES
                or redirect.descriptor not in (None, 1)
            ):
                continue
            before = state.txt if kind == "txt" else state.json
            appended = redirect.operator.endswith(">>") and before
            state = self._written(kind, UNKNOWN if appended else state.out, plain, state)
        return state

    def _written(self, kind: str, text: str, plain: Command, state: State) -> State:
        source = self.grader.scripts.get(self.names[-1])
        file = source.file if source is not None else ""
        early = not (state.tested or plain.conditional)
        self.writes[RewardWrite(kind, text, file, plain.line, early)] = None
        return replace(state, **{kind: text})

    def _substitutions(self, found: tuple[Substitution, ...], state: State) -> list[State]:
        states = [state]
        for one in found:
            ends = [
                self._back(end, before)
                for before in states
                for end in self._block(one.body, [replace(before, out=UNKNOWN)], True)
            ]
            states = list(dict.fromkeys(ends))
        return states

    def _back(self, end: State, before: State) -> State:
        """Out of a subshell: files stay written, the rest is as before."""
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
        whole = len(found.substitutions) == 1 and found.substitutions[0].text == found.value
        return [
            end.with_variable(found.name, end.out.strip() if whole else UNKNOWN) for end in ends
        ]

    # What holds other statements

    def _pipeline(self, pipeline: Pipeline, state: State) -> list[State]:
        states = [(state, ())]
        for part in pipeline.parts:
            after: list[tuple[State, tuple[bool | None, ...]]] = []
            for before, seen in states:
                ends = self._statement(part, replace(before, flow=""), True)
                after += [(replace(end, flow=""), (*seen, end.status)) for end in ends]
            states = list(dict.fromkeys(after))[:MAX_STATES]
        return [replace(end, status=piped(seen, end), parts=seen) for end, seen in states]

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
                news = left.failed - state.failed if not both.is_and else frozenset[int]()
                ends += [made_up(end, left, news, (both.right,)) for end in right]
        return list(dict.fromkeys(ends))

    def _if(self, statement: If, state: State, checked: bool) -> list[State]:
        ends: list[State] = []
        waiting = [state]
        for condition, body in statement.branches:
            falls: list[State] = []
            for start in waiting:
                for after in self._block(condition, [start], True):
                    if after.flow:
                        ends.append(after)
                        continue
                    news = after.failed - start.failed
                    if after.status is not False:
                        done = self._block(body, [replace(after, status=True)], checked)
                        ends += [made_up(end, after, news, body.statements) for end in done]
                    if after.status is not True:
                        falls.append(replace(after, status=False))
            waiting = list(dict.fromkeys(falls))
        if statement.otherwise is None:
            return [*ends, *(replace(one, status=True) for one in waiting)]
        rest = statement.otherwise
        for start in waiting:
            news = start.failed - state.failed
            done = self._block(rest, [start], checked)
            ends += [made_up(end, start, news, rest.statements) for end in done]
        return list(dict.fromkeys(ends))

    def _loop(self, loop: Loop, state: State, checked: bool) -> list[State]:
        ends: list[State] = []
        starts: list[State] = [state]
        if loop.condition is not None:
            starts = []
            for after in self._block(loop.condition, [state], True):
                goes_on = negated(after).status if loop.until else after.status
                if goes_on is not False:
                    starts.append(after)
                if goes_on is not True:
                    ends.append(replace(after, status=True))
        for end in self._block(loop.body, starts, checked):
            ends.append(replace(end, flow="") if end.flow == "break" else end)
        return list(dict.fromkeys(ends))

    def _case(self, case: Case, state: State, checked: bool) -> list[State]:
        subject = state.value(case.subject)
        ends: list[State] = []
        for patterns, body in case.items:
            match = fits(subject, patterns)
            if match is not False:
                ends += self._block(body, [state], checked)
            if match:
                return ends
        return [*ends, replace(state, status=True)]

    def _group(self, group: Group, state: State, checked: bool) -> list[State]:
        ends = self._block(group.body, [state], checked)
        if group.subshell:
            ends = [self._back(end, state) for end in ends]
        holder = Command("{", (), 0, -1, conditional=True)
        return [
            self._redirected(group.redirects, holder, replace(end, out=UNKNOWN))
            if group.redirects
            else end
            for end in ends
        ]
