"""Renders a trajectory for the terminal: a summary line, a table of tokens, and the messages of
each branch.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from plimsoll.core.text import DECODE_ERRORS, safe_text
from plimsoll.core.versions import Version
from plimsoll.trajectories.export.conversations import Conversation, ConversationMessage
from plimsoll.trajectories.messages import Image, Message, Other, Part, ToolCall
from plimsoll.trajectories.records import Branch, Exchange, Trouble
from plimsoll.trajectories.token_sequence import unpack_ids, unpack_logprobs
from plimsoll.trajectories.trajectory import Trajectory

__all__ = ["REASONS", "fold", "render", "summary_line", "token_table", "turn_of"]

LONG_LINES = 24
LONG = 3000
"""Texts with more lines or characters are folded to the head and tail below, which are shorter."""
HEAD_LINES, HEAD = 10, 1200
TAIL_LINES, TAIL = 6, 800


def fold(text: str, *, full: bool) -> str:
    """The beginning and end of a long text, and the number of characters left out."""
    text = text.rstrip("\n")
    if full or (text.count("\n") < LONG_LINES and len(text) <= LONG):
        return text
    head = "\n".join(text.split("\n", HEAD_LINES)[:HEAD_LINES])[:HEAD]
    rest = text[len(head) :]
    tail = "\n".join(rest.rsplit("\n", TAIL_LINES)[-TAIL_LINES:])[-TAIL:]
    left = len(rest) - len(tail)
    return f"{head}\n… {left:,} of {len(text):,} characters left out, --full shows them …\n{tail}"


EMPTY_CELL = "–"
SHOWN_IDS = 3


def summary_line(trajectory: Trajectory, branches: Sequence[Conversation]) -> str:
    """Turns, tokens, versions, branches, model and ending of a trajectory."""
    exchanges = trajectory.exchanges
    parts = [_counted(len(exchanges), "turn", "turns")]
    if answers := [one.answer_tokens for one in exchanges if one.answer_tokens is not None]:
        prompts = [one.prompt_tokens for one in exchanges if one.prompt_tokens is not None]
        longest = f", longest prompt {max(prompts):,}" if prompts else ""
        parts.append(f"{sum(answers):,} tokens generated{longest}")
    if versions := sorted({version for one in exchanges for version in _versions(one)}):
        first, last = versions[0], versions[-1]
        parts.append(f"version {first}" if first == last else f"versions {first} to {last}")
    parts.append(_counted(len(branches), "branch", "branches"))
    if model := trajectory.opened.about.get("model"):
        parts.append(safe_text(model))
    if (closed := trajectory.closed) is not None and closed.ending:
        detail = f" ({safe_text(closed.detail)})" if closed.detail else ""
        parts.append(f"ended: {safe_text(closed.ending)}{detail}")
    return " · ".join(parts)


def token_table(branches: Sequence[Conversation]) -> Table:
    """For each turn: the tokens of the prompt, those kept from the previous turn, and the answer's
    ids."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("turn", "branch", "prompt", "kept", "answer", "logprob"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("version", no_wrap=True)
    table.add_column("ids")
    for branch in branches:
        for exchange in branch.exchanges:
            table.add_row(f"{exchange.id + 1}", f"{branch.number}", *_cells(exchange))
    return table


def _cells(exchange: Exchange) -> tuple[str, ...]:
    prompt, answer = _number(exchange.prompt_tokens), _number(exchange.answer_tokens)
    versions = ", ".join(str(version) for version in _versions(exchange))
    tokens = exchange.tokens
    if tokens is None:
        return (
            prompt,
            EMPTY_CELL,
            answer,
            EMPTY_CELL,
            versions,
            f"none: {safe_text(exchange.untrainable)}",
        )
    logprobs = unpack_logprobs(tokens.logprobs)
    mean = f"{sum(logprobs) / len(logprobs):.3f}" if logprobs else EMPTY_CELL
    ids = unpack_ids(tokens.answer)
    shown = " ".join(str(one) for one in ids[:SHOWN_IDS])
    if len(ids) > SHOWN_IDS:
        shown = f"{shown} … {ids[-1]}"
    if exchange.untrainable:
        shown = f"{shown}  not trainable: {safe_text(exchange.untrainable)}"
    return prompt, f"{tokens.kept:,}", answer, mean, versions, shown


def _versions(exchange: Exchange) -> list[Version]:
    """The versions that generated the answer, in order."""
    runs = exchange.tokens.versions if exchange.tokens is not None else ()
    return list(dict.fromkeys(version for version, _ in runs)) or [exchange.version]


def _number(count: int | None) -> str:
    return EMPTY_CELL if count is None else f"{count:,}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


LABEL = 10
"""The width of the column of roles."""

REASONS: dict[Branch, str] = {
    "start": "a separate conversation",
    "extends": "a second continuation of the same answer",
    "again": "a second answer to the same prompt",
    "rewritten": "the agent rewrote history",
    "retokenized": "a second continuation of the same answer",
}


def render(
    branches: Sequence[Conversation], troubles: Sequence[Trouble], *, full: bool, alone: bool
) -> Iterator[RenderableType]:
    """The branches in order, with troubles where they happened.

    If `alone`, a branch is shown completely, else without the messages that it shares.
    """
    before, after = _troubles_by_exchange(branches, troubles)
    for branch in branches:
        yield Text()
        if len(branches) > 1 or branch.number:
            yield _heading(branch)
        leaving = [other for other in branches if other.origin == branch.number]
        for at, entry in enumerate(branch.messages):
            if alone or not entry.copied:
                number = None if entry.exchange is None else entry.exchange.id
                yield from (_trouble(trouble) for trouble in before.get(number, ()))
                yield _row(entry, full=full)
            yield from (_branch_mark(other) for other in leaving if other.shared == at + 1)
    yield from (_trouble(trouble) for trouble in after)


def turn_of(exchange: Exchange) -> str:
    """The number of an exchange, counted from 1."""
    return f"turn {exchange.id + 1}"


def _troubles_by_exchange(
    branches: Sequence[Conversation], troubles: Sequence[Trouble]
) -> tuple[Mapping[int | None, list[Trouble]], list[Trouble]]:
    """Troubles by the next answered exchange, and those after the last."""
    exchanges = [exchange for branch in branches for exchange in branch.exchanges]
    exchanges.sort(key=lambda exchange: exchange.at)
    before: dict[int | None, list[Trouble]] = {}
    after: list[Trouble] = []
    for trouble in sorted(troubles, key=lambda trouble: trouble.at):
        following = (exchange.id for exchange in exchanges if exchange.at >= trouble.at)
        number = next(following, None)
        (after if number is None else before.setdefault(number, [])).append(trouble)
    return before, after


def _heading(branch: Conversation) -> Text:
    entry = [f"── branch {branch.number}", REASONS[branch.reason]]
    if branch.origin is not None:
        noun = "message" if branch.shared == 1 else "messages"
        entry.append(f"shares {branch.shared:,} {noun} with branch {branch.origin}")
    return Text(" · ".join(entry), style="bold")


def _branch_mark(branch: Conversation) -> "Labelled":
    text = f"↳ branch {branch.number} starts here: {REASONS[branch.reason]}"
    return Labelled("", Text(text, style="yellow"))


def _trouble(trouble: Trouble) -> "Labelled":
    text = safe_text(f"{trouble.what}: {trouble.detail}")
    return Labelled("trouble", Text(text, style="yellow"), style="yellow")


def _row(entry: ConversationMessage, *, full: bool) -> "Labelled":
    message, exchange = entry.message, entry.exchange
    lines: list[Text] = []
    if exchange is not None:
        lines.append(Text(_figures(exchange), style="dim"))
    if message.reasoning:
        lines.append(Text(fold(safe_text(message.reasoning), full=full), style="dim italic"))
    if shown := fold(safe_text(_text(message)), full=full):
        lines.append(Text(shown))
    lines += [_call(call, full=full) for call in message.calls]
    if not lines:
        lines.append(Text("(empty)", style="dim"))
    return Labelled(message.role, Text("\n").join(lines))


def _figures(exchange: Exchange) -> str:
    parts = [turn_of(exchange)]
    if exchange.answer_tokens is not None:
        prompt = "?" if exchange.prompt_tokens is None else f"{exchange.prompt_tokens:,}"
        parts.append(f"{prompt} → {exchange.answer_tokens:,} tokens")
    parts += [f"version {exchange.version}", f"{exchange.seconds:.1f} s", exchange.finish]
    if exchange.branch == "retokenized":
        parts.append("retokenized")
    if exchange.untrainable:
        parts.append(f"not trainable: {safe_text(exchange.untrainable)}")
    return " · ".join(parts)


def _call(call: ToolCall, *, full: bool) -> Text:
    """A call as `name arguments`; strings among the arguments keep their line breaks."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        shown = [f"{call.arguments}  (not a JSON object)"]
    else:
        shown = [f"{name}: {_value(value)}" for name, value in arguments.items()]
    between = " " if len(shown) == 1 else "\n  "
    lines = safe_text("".join(f"{between}{_indented(one)}" for one in shown))
    return Text.assemble((safe_text(call.name), "bold cyan"), fold(lines, full=full))


def _indented(argument: str) -> str:
    return argument.rstrip("\n").replace("\n", "\n    ")


def _value(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except DECODE_ERRORS:
        return bytes(raw).decode()


def _text(message: Message) -> str:
    return "".join(_part(part) for part in message.parts)


def _part(part: Part) -> str:
    match part:
        case Image(url):
            return f"[image {url[:100]}]"
        case Other():
            return f"[{bytes(part.value)[:100].decode('utf-8', 'replace')}]"
        case _:
            return part.text


class Labelled:
    """A text beside its label, without trailing blanks."""

    def __init__(self, label: str, text: Text, *, style: str = "bold") -> None:
        self._label = Text(f"{label:<{LABEL}} ", style=style)
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(options.max_width - len(self._label), 1)
        before = self._label
        for line in self._text.wrap(console, width, overflow="fold"):
            row = Text.assemble(before, line)
            row.rstrip()
            yield row
            before = Text(" " * len(self._label))
