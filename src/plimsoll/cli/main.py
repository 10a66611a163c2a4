"""The `plimsoll` command. A subcommand's file is imported when it is used or listed.

Those files import no more than click at their top, so that `--help` is quick.
"""

import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

import click

from plimsoll import __version__
from plimsoll.cli.streams import NotWritten, drop_rest, heard, unheard
from plimsoll.core.errors import PlimsollError

__all__ = ["main"]

COMMANDS = {
    "bake": "plimsoll.cli.bake",
    "clean": "plimsoll.cli.clean",
    "completion": "plimsoll.cli.completion",
    "config": "plimsoll.cli.config",
    "eval": "plimsoll.cli.eval",
    "gateway": "plimsoll.cli.gateway",
    "ledger": "plimsoll.cli.ledger",
    "lint": "plimsoll.cli.lint",
    "ps": "plimsoll.cli.ps",
    "resume": "plimsoll.cli.resume",
    "run": "plimsoll.cli.run",
    "show": "plimsoll.cli.show",
    "simulate": "plimsoll.cli.simulate",
    "stage": "plimsoll.cli.stage",
    "status": "plimsoll.cli.status",
    "stop": "plimsoll.cli.stop",
    "validate": "plimsoll.cli.validate",
}
"""The commands, each with the module that holds its `command`."""


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name]).command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="plimsoll", message="%(prog)s %(version)s")
def plimsoll() -> None:
    """Run coding agents in sandboxes, with rewards that can be trusted."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error made on purpose is a line, never a trace."""
    with redirect_stderr(unheard(sys.stderr)), redirect_stdout(heard(sys.stdout)):
        code = _run(args)
    sys.exit(code)


def _run(args: Sequence[str] | None) -> int:
    try:
        code = plimsoll.main(args, prog_name="plimsoll", standalone_mode=False)
        sys.stdout.flush()
    except PlimsollError as error:
        code = _say(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "plimsoll"
        code = _say(f"{error.format_message()}\ntry: {where} --help")
    except click.ClickException as error:
        code = _say(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        drop_rest(1)
        code = 1
    except NotWritten as error:
        drop_rest(1)
        _say(f"cannot write to standard output: {error.strerror}")
        code = 1
    return code


def _say(message: str) -> int:
    click.echo(f"plimsoll: {message}", err=True)
    return 2
