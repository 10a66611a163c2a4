"""A trajectory as a person reads it in a terminal: branch by branch, message by message."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from plimsoll.core.text import safe_text
from plimsoll.core.unreadable import UNREADABLE
from plimsoll.trajectories.conversations import Conversation, Said
from plimsoll.trajectories.folding import fold
from plimsoll.trajectories.messages import Image, Message, Other, Part, ToolCall
from plimsoll.trajectories.records import Branch, Exchange, Trouble

__all__ = ["REASONS", "render", "turn_of"]

LABEL = 10
"""Columns that the names of roles take."""

REASONS: dict[Branch, str] = {
    "start": "a conversation of its own",
    "extends": "a second way on from the same answer",
    "again": "a second answer to the same prompt",
    "rewritten": "the agent rewrote history",
    "retokenized": "a second way on from the same answer",
}


def render(
    branches: Sequence[Conversation], troubles: Sequence[Trouble], *, full: bool, alone: bool
) -> Iterator[RenderableType]:
    """The branches in their order, troubles where they happened.

    A branch that stands `alone` is shown whole; others without what they share.
    """
    before, after = _in_place(branches, troubles)
    for branch in branches:
        yield Text()
        if len(branches) > 1 or branch.number:
            yield _heading(branch)
        leaving = [other for other in branches if other.origin == branch.number]
        for at, said in enumerate(branch.said):
            if alone or not said.copied:
                number = None if said.exchange is None else said.exchange.id
                yield from (_trouble(trouble) for trouble in before.get(number, ()))
                yield _row(said, full=full)
            yield from (_mark(other) for other in leaving if other.shared == at + 1)
    yield from (_trouble(trouble) for trouble in after)


def turn_of(exchange: Exchange) -> str:
    """How a person counts exchanges."""
    return f"turn {exchange.id + 1}"


def _in_place(
    branches: Sequence[Conversation], troubles: Sequence[Trouble]
) -> tuple[Mapping[int | None, list[Trouble]], list[Trouble]]:
    """Troubles by the exchange that was answered next, and those after the last."""
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
    said = [f"── branch {branch.number}", REASONS[branch.reason]]
    if branch.origin is not None:
        noun = "message" if branch.shared == 1 else "messages"
        said.append(f"shares {branch.shared:,} {noun} with branch {branch.origin}")
    return Text(" · ".join(said), style="bold")


def _mark(branch: Conversation) -> "Labelled":
    text = f"↳ branch {branch.number} leaves here: {REASONS[branch.reason]}"
    return Labelled("", Text(text, style="yellow"))


def _trouble(trouble: Trouble) -> "Labelled":
    text = safe_text(f"{trouble.what}: {trouble.detail}")
    return Labelled("trouble", Text(text, style="yellow"), style="yellow")


def _row(said: Said, *, full: bool) -> "Labelled":
    message, exchange = said.message, said.exchange
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
    """A call as `name arguments`; texts among the arguments keep their lines."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        shown = [f"{call.arguments}  (no JSON object)"]
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
    except UNREADABLE:
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
    """A text beside the name of who said it, without blanks at the end of its lines."""

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
