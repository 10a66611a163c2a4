"""`plimsoll completion`: the shell script that completes commands, options and paths."""

import click

__all__ = ["command"]

VARIABLE = "_PLIMSOLL_COMPLETE"
"""Set by the shell script: the command answers with completions instead of running."""

EPILOG = """\b
Set up once, then start a new shell:
  bash   echo 'eval "$(plimsoll completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(plimsoll completion zsh)"' >> ~/.zshrc
  fish   plimsoll completion fish > ~/.config/fish/completions/plimsoll.fish

\b
Exit status:
  0    the script is on standard output
  2    bad usage: an unknown shell
"""


@click.command(
    "completion", short_help="Print a completion script for bash, zsh or fish.", epilog=EPILOG
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: bash (4.4 or newer), zsh or fish."""
    # Imported here: `plimsoll --help` needs none of it.
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    # `ShellComplete.source` and not the class's own: that of bash starts a bash to see its version.
    click.echo(ShellComplete.source(kind(ctx.find_root().command, {}, "plimsoll", VARIABLE)))
