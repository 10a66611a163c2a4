"""The upstream of `bench_gateway.py`: canned answers from bare sockets, cheaper than any gateway.

Prints its port and serves until its input ends.
"""

import asyncio
import functools
import sys

import msgspec

from gateway_cases import CASES, MARK, Case, reply_events, whole_reply

BY_NAME = {case.name.encode(): case for case in CASES}
MODELS = (
    b'{"object":"list","data":[{"id":"policy","object":"model","max_model_len":1000000,'
    b'"stream_token_ids":true}]}'
)
EVENTS_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def json_answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


@functools.cache
def whole(case: Case, turn: int) -> bytes:
    return json_answer(whole_reply(case, turn))


@functools.cache
def pieces(case: Case, turn: int) -> list[bytes]:
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in reply_events(case, turn)]
    return [EVENTS_HEAD + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


class Connection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self) -> None:
        self._got = bytearray()
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._task:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._size:
            end = self._got.find(b"\r\n\r\n")
            if end < 0:
                return
            self._size = end + 4 + content_length(bytes(self._got[:end]))
        if len(self._got) >= self._size:
            request, self._got, self._size = bytes(self._got), bytearray(), 0
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET"):
            self._transport.write(json_answer(MODELS))
            return
        mark = MARK.match(request, request.rfind(b"@bench:"))
        if mark is None:
            # A probe of this server's capabilities: it has all of them.
            case = BY_NAME[b"streamids" if b'"stream":true' in request else b"ids"]
            turn = 0
        else:
            case, turn = BY_NAME[mark[1]], int(mark[2])
        if case.gap:
            self._task = asyncio.ensure_future(self._paced(case, turn))
        elif case.stream:
            for piece in pieces(case, turn):
                self._transport.write(piece)
        else:
            self._transport.write(whole(case, turn))

    async def _paced(self, case: Case, turn: int) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        for piece in pieces(case, turn):
            self._transport.write(piece)
            due += case.gap
            await asyncio.sleep(max(0.0, due - clock()))


def content_length(head: bytes) -> int:
    found = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return int(found or 0)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=256)
    print(msgspec.json.encode({"port": server.sockets[0].getsockname()[1]}).decode(), flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
