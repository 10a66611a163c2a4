"""Captured output of bounded size: its beginning, its end, and its total length."""

from dataclasses import dataclass

__all__ = ["Capture", "Captured"]


@dataclass(frozen=True, slots=True)
class Captured:
    """The kept part of a stream. `total` counts all bytes that were printed."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def dropped(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    @property
    def data(self) -> bytes:
        if not self.dropped:
            return self.head + self.tail
        note = f"\n… {self.dropped:,} bytes left out …\n".encode()
        return self.head + note + self.tail

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Capture:
    """Collects chunks and keeps at most `keep` bytes: half of them the first, half the last."""

    def __init__(self, keep: int) -> None:
        self._head_room = keep - keep // 2
        self._tail_room = keep // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, chunk: bytes) -> None:
        self._total += len(chunk)
        if (room := self._head_room - len(self._head)) > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk or not self._tail_room:
            return
        self._tail += chunk[-self._tail_room :]
        # Trimmed only at twice its size, so that each byte is moved at most twice.
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def captured(self) -> Captured:
        tail = bytes(self._tail[-self._tail_room :]) if self._tail_room else b""
        return Captured(head=bytes(self._head), tail=tail, total=self._total)
