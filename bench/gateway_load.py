"""The clients of `bench_gateway.py`: raw sockets, because the cost of clients is not measured.

Reads one job per line and prints its figures. Each connection holds one conversation after the
other, one request at a time, as agents do.
"""

import asyncio
import functools
import sys
import time
from collections.abc import Iterator

import msgspec

from gateway_cases import CASES, LAST_WORD, Case, bodies

__all__ = ["Address", "Job", "Timings"]

BY_NAME = {case.name: case for case in CASES}
TIMEOUT = 60.0


class Address(msgspec.Struct, frozen=True):
    """The address of a conversation."""

    port: int
    prefix: str = ""
    """The path before the dialect's own path."""
    key: str = "none"


class Job(msgspec.Struct, frozen=True):
    """Hold a conversation at each address, with this concurrency."""

    case: str
    addresses: list[Address]
    at_once: int
    turns: int = 1000
    """The maximum number of turns of each conversation."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds of the job, and of each request until its last and its first byte."""

    seconds: float
    whole: list[float]
    first: list[float]
    problem: str = ""


class Connection(asyncio.Protocol):
    """One client: sends a request, and times the beginning and end of its answer."""

    def __init__(self) -> None:
        self._done: asyncio.Future[None] | None = None
        self._got = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed before the answer's end"))

    async def ask(self, request: bytes) -> tuple[float, float, bytes]:
        """Seconds until the last byte and the first byte of the body, and the answer."""
        self._done = asyncio.get_running_loop().create_future()
        self._got, self._body, self._end = bytearray(), 0, 0
        began = time.perf_counter()
        self.transport.write(request)
        async with asyncio.timeout(TIMEOUT):
            await self._done
        return time.perf_counter() - began, self._first - began, bytes(self._got)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._body:
            self._read_head()
        if not self._body:
            return
        if not self._first:
            if len(self._got) <= self._body:
                return
            self._first = time.perf_counter()
        over = len(self._got) >= self._end if self._end else self._got.endswith(b"\r\n0\r\n\r\n")
        if over and self._done and not self._done.done():
            self._done.set_result(None)

    def _read_head(self) -> None:
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._got[:end]).lower()
        self._body, self._first = end + 4, 0.0
        length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        self._end = self._body + int(length) if length else 0


@functools.cache
def case_bodies(case: Case) -> list[bytes]:
    return bodies(case)


def request(case: Case, address: Address, body: bytes) -> bytes:
    head = (
        f"POST {address.prefix}{case.path} HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\n"
        f"Authorization: Bearer {address.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n"
    )
    return head.encode() + body


def check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 200") or LAST_WORD.encode() not in answer:
        raise ConnectionError(f"unexpected answer: {answer[:600]!r}")


async def converse(job: Job, addresses: Iterator[Address], timings: Timings) -> None:
    case = BY_NAME[job.case]
    connection: Connection | None = None
    for address in addresses:
        for body in case_bodies(case)[: job.turns]:
            if connection is None or connection.transport.is_closing():
                loop = asyncio.get_running_loop()
                made = await loop.create_connection(Connection, "127.0.0.1", address.port)
                connection = made[1]
            whole, first, answer = await connection.ask(request(case, address, body))
            timings.whole.append(whole)
            timings.first.append(first)
            check(answer)
    if connection:
        connection.transport.close()


async def run(job: Job) -> Timings:
    case_bodies(BY_NAME[job.case])
    addresses, timings, problem = iter(job.addresses), Timings(0.0, [], []), ""
    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(job.at_once):
                group.create_task(converse(job, addresses, timings))
    except* (OSError, TimeoutError) as failed:
        problem = repr(failed.exceptions[0])
    return msgspec.structs.replace(timings, seconds=time.perf_counter() - began, problem=problem)


def main() -> None:
    for line in sys.stdin.buffer:
        timings = asyncio.run(run(msgspec.json.decode(line, type=Job)))
        print(msgspec.json.encode(timings).decode(), flush=True)


if __name__ == "__main__":
    main()
