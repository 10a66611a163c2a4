"""What `plimsoll gateway` prints and does while it serves."""

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from plimsoll.cli.interrupts import Interrupts
from plimsoll.core.errors import UsageError
from plimsoll.gateway.gateway import Listen
from plimsoll.gateway.standalone import Standalone
from plimsoll.gateway.upstreams.make import make_upstream

__all__ = ["Options", "serve"]

ADMIN_KEY = "PLIMSOLL_ADMIN_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    upstream: tuple[str, ...]
    port: int
    host: str
    model: str | None
    out: Path


def serve(options: Options) -> int:
    """Serve until a signal comes."""
    if not options.upstream:
        raise UsageError(
            "there is nothing to forward to: name a server with --upstream URL, "
            "or a script with --upstream scripted:FILE"
        )
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    with Interrupts() as interrupts:
        interrupts.run(_serve(options))
    return 0


async def _serve(options: Options) -> None:
    upstream = await make_upstream(options.upstream, model=options.model)
    given = os.environ.get(ADMIN_KEY)
    try:
        listen = Listen(options.host, options.port)
        async with Standalone(upstream, options.out, listen=listen, admin_key=given) as serving:
            _say(options, serving, given is not None)
            await asyncio.Event().wait()
    finally:
        await upstream.close()


def _say(options: Options, serving: Standalone, given: bool) -> None:
    root = f"http://{options.host}:{serving.port}"
    key = f"${ADMIN_KEY}" if given else serving.admin_key
    click.echo(f"gateway     {root} · forwards to {', '.join(options.upstream)}")
    click.echo(f"record      {options.out}/")
    click.echo(f"admin key   {key}")
    click.echo(f'a session   curl -X POST {root}/sessions -H "Authorization: Bearer {key}"')
    click.echo(f"watch       {root}/healthz · {root}/metrics")
