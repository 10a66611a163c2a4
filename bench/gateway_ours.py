"""Plimsoll's gateway as a process of `bench_gateway.py`, with a session for each conversation.

Prints its port. Each line of its input is a number of new sessions, which replace the previous
ones. It answers with their addresses, and with the trajectories of the previous ones.
"""

import asyncio
import itertools
import sys
from pathlib import Path

import msgspec

from gateway_load import Address
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.factory import make_upstream

__all__ = ["Opened"]


class Opened(msgspec.Struct, frozen=True):
    """The new sessions, and the trajectories of the previous ones."""

    addresses: list[Address]
    written: list[str]


async def serve(address: str, folder: Path) -> None:
    upstream = await make_upstream([address], model="policy")
    loop, numbers = asyncio.get_running_loop(), itertools.count()
    sessions: list[Session] = []
    async with Gateway(upstream) as gateway:

        async def open_session() -> Session:
            return await gateway.open(folder / str(next(numbers)), blobs=folder / "blobs")

        def address_of(session: Session) -> Address:
            access = session.access(gateway.port)
            return Address(gateway.port, f"/s/{access.root.rpartition('/')[2]}", access.key)

        print(msgspec.json.encode({"port": gateway.port}).decode(), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            count = msgspec.json.decode(line, type=dict[str, int])["open"]
            written = await asyncio.gather(*(session.end() for session in sessions))
            sessions = [await open_session() for _ in range(count)]
            opened = Opened(
                [address_of(session) for session in sessions], [str(p) for p in written]
            )
            print(msgspec.json.encode(opened).decode(), flush=True)
    await upstream.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
