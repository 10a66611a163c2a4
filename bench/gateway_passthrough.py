"""The minimal gateway written with aiohttp: forwards bytes, and is incorrect otherwise.

Prints its port and serves until its input ends.
"""

import asyncio
import sys

import aiohttp
import msgspec
from aiohttp import web

COPIED = ("Content-Type", "Content-Length")


async def serve(upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(upstream, connector=connector) as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {"Content-Type": "application/json"}
            async with client.post(request.rel_url.path, data=body, headers=headers) as received:
                copied = {
                    name: received.headers[name] for name in COPIED if name in received.headers
                }
                answer = web.StreamResponse(status=received.status, headers=copied)
                await answer.prepare(request)
                async for piece in received.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(msgspec.json.encode({"port": runner.addresses[0][1]}).decode(), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
