"""The agent of `bench_workers.py`, which both sides run in their worker process or separately.

Its conversation grows by one message per turn. It uses a bare socket and sends its history in
pieces, so that the client costs little beside the worker. It needs only the standard library:
verifiers runs it in another virtual environment.
"""

import asyncio
import base64
import json
import random
import sys

__all__ = ["play"]

MARK = b"@bench:small:0@"
"""A marker by which the policy finds its answer without parsing."""
TIMEOUT = 120.0


async def play(address: str, key: str, turns: int, size: int) -> None:
    """Play a number of turns at a URL that ends in /v1, each with a new message of `size` bytes.

    A large message is an image, a small one is text.
    """
    host, _, path = address.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    head = (
        f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
    ).encode()
    history = [b'{"model":"policy","messages":[']
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        for _ in range(turns):
            history.append(_message(size))
            async with asyncio.timeout(TIMEOUT):
                answer = await _ask(reader, writer, head, history)
            history.append(b",%b," % answer)
    finally:
        writer.close()
        await writer.wait_closed()


def _message(size: int) -> bytes:
    if size < 10_000:
        text = base64.b64encode(random.randbytes(size * 3 // 4))
        return b'{"role":"user","content":"%b %b"}' % (text, MARK)
    image = base64.b64encode(random.randbytes(size * 3 // 4))
    return (
        b'{"role":"user","content":[{"type":"image_url","image_url":'
        b'{"url":"data:image/png;base64,%b"}},{"type":"text","text":"%b"}]}' % (image, MARK)
    )


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, history: list[bytes]
) -> bytes:
    """Send the history, and return the answer as a message."""
    length = sum(map(len, history)) + 2
    writer.write(head + b"%d\r\n\r\n" % length)
    for piece in history:
        writer.write(piece)
        await writer.drain()
    writer.write(b"]}")
    status = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in status.partition(b"\r\n")[0]:
        raise ConnectionError(f"unexpected answer: {status!r} {await reader.read(600)!r}")
    size = int(status.partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = json.loads(await reader.readexactly(size))
    content = body["choices"][0]["message"]["content"]
    return json.dumps({"role": "assistant", "content": content}).encode()


def main() -> None:
    """Run the agent: ADDRESS, TURNS and SIZE are arguments; the key comes on standard input."""
    address, *figures = sys.argv[1:]
    asyncio.run(play(address, sys.stdin.readline().strip(), *map(int, figures)))


if __name__ == "__main__":
    main()
