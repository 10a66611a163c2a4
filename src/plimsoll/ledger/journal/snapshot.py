"""Snapshots: the books as bytes and back, so that a long journal need not be read from the
start."""

import msgspec

from plimsoll.core.versions import Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import Group, Pending
from plimsoll.ledger.books.tally import Tally
from plimsoll.ledger.data_order import Epoch
from plimsoll.ledger.settings import Settings

__all__ = ["dump", "load"]


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the books; everything else is derived from it."""

    settings: Settings | None
    version: Version
    parents: dict[int, Version]
    groups: list[Group]
    evals: list[Group]
    pending: list[Pending]
    quarantined: dict[str, str]
    stranded: dict[str, list[Pending]]
    next_prompt: int
    epoch: int
    begun: list[str]
    """Tasks that have had their turn in the epoch."""
    tally: Tally
    configured: int
    returned: int
    rollbacks: int


_decoder = msgspec.msgpack.Decoder(_State)


def dump(books: Books) -> bytes:
    """Serialize books; equal books give equal bytes."""
    state = _State(
        settings=books.settings,
        version=books.version,
        parents=dict(sorted(books.lineages.parents.items())),
        groups=list(books.groups.values()),
        evals=list(books.evals.values()),
        pending=sorted(books.pending.values(), key=lambda pending: pending.prompt),
        quarantined=dict(sorted(books.quarantined.items())),
        stranded=dict(sorted(books.stranded.items())),
        next_prompt=books.next_prompt,
        epoch=books.epoch.number,
        begun=sorted(books.epoch.begun),
        tally=books.tally.in_order(),
        configured=books.configured,
        returned=books.returned,
        rollbacks=books.rollbacks,
    )
    return msgspec.msgpack.encode(state)


def load(data: bytes) -> Books:
    """Deserialize books. Raises `msgspec.MsgspecError` for other versions and other data."""
    state = _decoder.decode(data)
    books = Books()
    books.settings = state.settings
    books.version = state.version
    for lineage, parent in state.parents.items():
        books.lineages.branch(lineage, parent)
    for group in state.groups:
        books.enter(group)
    for group in state.evals:
        books.enter_evaluation(group)
    for pending in state.pending:
        books.requeue(pending)
    books.quarantined = state.quarantined
    books.stranded = state.stranded
    books.next_prompt = state.next_prompt
    books.epoch = Epoch(state.epoch, state.begun)
    books.tally = state.tally
    books.configured = state.configured
    books.returned = state.returned
    books.rollbacks = state.rollbacks
    return books
