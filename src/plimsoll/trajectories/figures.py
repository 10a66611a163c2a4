"""The figures of a trajectory: one line for all of it, and a table of the tokens of each turn."""

from collections.abc import Sequence

from rich.table import Table

from plimsoll.core.text import safe_text
from plimsoll.core.versions import Version
from plimsoll.trajectories.conversations import Conversation
from plimsoll.trajectories.reader import Trajectory
from plimsoll.trajectories.records import Exchange
from plimsoll.trajectories.tokens import unpack_ids, unpack_logprobs

__all__ = ["summary_line", "token_table"]

NONE = "–"
SHOWN_IDS = 3


def summary_line(trajectory: Trajectory, branches: Sequence[Conversation]) -> str:
    """Turns, tokens, versions, branches, which model was asked, and how it ended."""
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
    """For each turn: the prompt's tokens and how many the turn before left, the answer's ids."""
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
        return prompt, NONE, answer, NONE, versions, f"none: {safe_text(exchange.untrainable)}"
    logprobs = unpack_logprobs(tokens.logprobs)
    mean = f"{sum(logprobs) / len(logprobs):.3f}" if logprobs else NONE
    ids = unpack_ids(tokens.answer)
    shown = " ".join(str(one) for one in ids[:SHOWN_IDS])
    if len(ids) > SHOWN_IDS:
        shown = f"{shown} … {ids[-1]}"
    if exchange.untrainable:
        shown = f"{shown}  not trainable: {safe_text(exchange.untrainable)}"
    return prompt, f"{tokens.kept:,}", answer, mean, versions, shown


def _versions(exchange: Exchange) -> list[Version]:
    """The versions that had a part in the answer, in order."""
    runs = exchange.tokens.versions if exchange.tokens is not None else ()
    return list(dict.fromkeys(version for version, _ in runs)) or [exchange.version]


def _number(count: int | None) -> str:
    return NONE if count is None else f"{count:,}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
