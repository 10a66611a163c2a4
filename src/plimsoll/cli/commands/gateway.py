"""`plimsoll gateway`: the standalone gateway, and the probe of an upstream."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Variables:
  PLIMSOLL_POLICY_KEY  the API key of the upstream's servers, if they need one
  PLIMSOLL_ADMIN_KEY   the key of admin calls; by default a new one is made and printed

\b
Exit status:
  0    stopped by a signal, with every trajectory closed
  2    bad usage, an unusable upstream, or a port that is in use
"""
PROBE_EPILOG = """\b
Exit status:
  0    the server can be used
  1    the server cannot be used; the reason is printed
  2    bad usage
"""


@click.group(
    "gateway",
    short_help="Serve a policy to agents and record trajectories.",
    epilog=EPILOG,
    invoke_without_command=True,
)
@click.option(
    "--upstream",
    multiple=True,
    metavar="URL",
    help="An OpenAI-compatible server, repeated for each replica; or scripted:FILE.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8100,
    show_default=True,
    help="The port to listen on; 0 for any free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--model", metavar="NAME", help="The model name on the server.  [default: its only model]"
)
@click.option(
    "--out",
    type=options.PATH,
    default=Path("trajectories"),
    show_default=True,
    metavar="DIR",
    help="The folder of trajectories.",
)
@click.option(
    "--media-host",
    "media_hosts",
    multiple=True,
    metavar="NAME",
    help="A host whose images requests may name by URL, or *.NAME; can be repeated.  "
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
    """Serve the wire formats of OpenAI and Anthropic to agents anywhere, and record trajectories.

    An admin call makes a session with its own key and limits; agents use its base URL.
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


@command.command("probe", short_help="Show the capabilities of a server.", epilog=PROBE_EPILOG)
@click.argument("url")
@click.option(
    "--model", metavar="NAME", help="The model name on the server.  [default: its only model]"
)
@options.json_output
def probe(url: str, model: str | None, as_json: bool) -> int:
    """Show the capabilities of the server at URL: text, log probabilities, token ids, tool calls.

    Training needs token ids and log probabilities; evaluation does not.
    """
    from plimsoll.cli.terminal.gateway import show_capabilities

    return show_capabilities(url, model=model, as_json=as_json)
