"""What `plimsoll gateway probe` prints."""

import asyncio
import dataclasses
import os

import click
import msgspec

from plimsoll.gateway.upstreams.capabilities import render
from plimsoll.gateway.upstreams.make import KEY_VARIABLE
from plimsoll.gateway.upstreams.probe import probe

__all__ = ["show"]


def show(url: str, *, model: str | None, as_json: bool) -> int:
    """Ask the server, and say what it can return."""
    found = asyncio.run(probe(url, model, os.environ.get(KEY_VARIABLE)))
    if as_json:
        said = {**dataclasses.asdict(found), "trains": found.trains}
        click.echo(msgspec.json.encode(said))
    else:
        for line in render(found):
            click.echo(line)
    return 1 if found.problem else 0
