"""`plimsoll gateway`: the gateway by itself, and a look at what an upstream can return."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Variables:
  PLIMSOLL_POLICY_KEY  the key of the upstream's servers, where they want one
  PLIMSOLL_ADMIN_KEY   the key of admin calls; without it a new one is made and printed

\b
Exit status:
  0    it was stopped by a signal, with every trajectory closed
  2    bad usage, an upstream that cannot be used, or a port that cannot be had
"""
PROBE_EPILOG = """\b
Exit status:
  0    it can be used
  1    it cannot be used, and why is said
  2    bad usage
"""


@click.group("gateway", epilog=EPILOG, invoke_without_command=True)
@click.option(
    "--upstream",
    multiple=True,
    metavar="URL",
    help="An OpenAI-compatible server, again for each replica; or scripted:FILE.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8100, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--model", metavar="NAME", help="The policy's name there.  [default: its only one]")
@click.option(
    "--out",
    type=options.PATH,
    default=Path("trajectories"),
    show_default=True,
    metavar="DIR",
    help="Where trajectories are kept.",
)
@click.option(
    "--media-host",
    "media_hosts",
    multiple=True,
    metavar="NAME",
    help="A host that requests may name images of by URL, or *.NAME; again for each.  "
    "[default: none, only data: URLs]",
)
@click.pass_context
def command(
    context: click.Context,
    upstream: tuple[str, ...],
    port: int,
    host: str,
    model: str | None,
    out: Path,
    media_hosts: tuple[str, ...],
) -> int:
    """Serve agents anywhere: OpenAI's and Anthropic's wire formats in, trajectories out.

    An admin call makes a session with a key and limits of its own; agents use its base URL.
    """
    if context.invoked_subcommand is not None:
        return 0
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.gateway import Options, serve

    chosen = Options(
        upstream=upstream,
        port=port,
        host=host,
        model=model,
        out=out,
        media_hosts=media_hosts,
    )
    return serve(chosen)


@command.command("probe", epilog=PROBE_EPILOG)
@click.argument("url")
@click.option("--model", metavar="NAME", help="The policy's name there.  [default: its only one]")
@options.json_output
def probe(url: str, model: str | None, as_json: bool) -> int:
    """Say what the server at URL can return: text, log probabilities, token ids, tool calls.

    Training needs token ids and log probabilities; evaluation does not.
    """
    from plimsoll.cli.terminal.gateway import show_capabilities

    return show_capabilities(url, model=model, as_json=as_json)
