"""The standalone gateway in the foreground, and the probe of an upstream."""

import asyncio
import dataclasses
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import click
import msgspec

from plimsoll.cli.terminal.interrupts import Interrupts
from plimsoll.core.errors import UsageError
from plimsoll.core.host_names import check_host_names
from plimsoll.gateway.http.server import Listen
from plimsoll.gateway.standalone.standalone import StandaloneGateway
from plimsoll.gateway.upstreams.capabilities import render_capabilities
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE, make_upstream
from plimsoll.gateway.upstreams.probe import probe

__all__ = ["Options", "serve", "show_capabilities"]

ADMIN_KEY = "PLIMSOLL_ADMIN_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command."""

    upstream: tuple[str, ...]
    port: int
    host: str
    model: str | None
    out: Path
    media_hosts: tuple[str, ...] = ()


def serve(options: Options) -> int:
    """Serve until a signal arrives."""
    if not options.upstream:
        raise UsageError(
            "there is no upstream: name a server with --upstream URL, or a script with "
            "--upstream scripted:FILE"
        )
    check_host_names(options.media_hosts, "--media-host")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    with Interrupts() as interrupts:
        interrupts.run(_serve(options))
    return 0


async def _serve(options: Options) -> None:
    upstream = await make_upstream(options.upstream, model=options.model)
    given = os.environ.get(ADMIN_KEY) or None
    try:
        _check_writable(options.out)
        listen = Listen(options.host, options.port)
        async with StandaloneGateway(
            upstream,
            options.out,
            listen=listen,
            admin_key=given,
            media_hosts=options.media_hosts,
        ) as serving:
            _print_addresses(options, serving, given is not None)
            await asyncio.Event().wait()
    finally:
        await upstream.close()


def _check_writable(folder: Path) -> None:
    """Check the folder now rather than at the first session."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"trajectories cannot be written to {folder}: {error.strerror or error}; "
            "choose another folder with --out"
        ) from error


def _print_addresses(options: Options, serving: StandaloneGateway, given: bool) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    root = f"http://{host}:{serving.port}"
    key = f"${ADMIN_KEY}" if given else serving.admin_key
    click.echo(f"gateway     {root} · forwards to {', '.join(options.upstream)}")
    click.echo(f"record      {options.out}/")
    click.echo(f"admin key   {key}")
    click.echo(f'a session   curl -X POST {root}/sessions -H "Authorization: Bearer {key}"')
    click.echo(f"watch       {root}/healthz · {root}/metrics")


def show_capabilities(url: str, *, model: str | None, as_json: bool) -> int:
    """Probe a server and print its capabilities."""
    found = asyncio.run(probe(url, model, os.environ.get(KEY_VARIABLE)))
    if as_json:
        fields = {**dataclasses.asdict(found), "trains": found.trains}
        click.echo(msgspec.json.encode(fields))
    else:
        for line in render_capabilities(found):
            click.echo(line)
    return 1 if found.problem else 0
