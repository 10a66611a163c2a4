"""The `plimsoll` command. The module of a subcommand is imported when it is used or listed.

These modules import only click at the top, so that `--help` is fast.
"""

import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import NoReturn

import click

from plimsoll import __version__
from plimsoll.cli.terminal.streams import (
    OutputError,
    checked_stream,
    drop_rest,
    lossy_stream,
)
from plimsoll.core.errors import PlimsollError

__all__ = ["main"]

COMMANDS = {
    "bake": "plimsoll.cli.commands.bake",
    "clean": "plimsoll.cli.commands.clean",
    "completion": "plimsoll.cli.commands.completion",
    "config": "plimsoll.cli.commands.config",
    "eval": "plimsoll.cli.commands.eval",
    "gateway": "plimsoll.cli.commands.gateway",
    "ledger": "plimsoll.cli.commands.ledger",
    "lint": "plimsoll.cli.commands.lint",
    "ps": "plimsoll.cli.commands.ps",
    "resume": "plimsoll.cli.commands.resume",
    "run": "plimsoll.cli.commands.run",
    "show": "plimsoll.cli.commands.show",
    "simulate": "plimsoll.cli.commands.simulate",
    "stage": "plimsoll.cli.commands.stage",
    "status": "plimsoll.cli.commands.status",
    "stop": "plimsoll.cli.commands.stop",
    "validate": "plimsoll.cli.commands.validate",
}
"""The module of each command, which defines `command`."""


class LazyGroup(click.Group):
    """A group that imports commands lazily."""

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
    """Run the command line and exit. An expected error is a message, never a traceback."""
    with redirect_stderr(lossy_stream(sys.stderr)), redirect_stdout(checked_stream(sys.stdout)):
        code = _run(args)
    sys.exit(code)


def _run(args: Sequence[str] | None) -> int:
    try:
        code = plimsoll.main(args, prog_name="plimsoll", standalone_mode=False)
        sys.stdout.flush()
    except PlimsollError as error:
        code = _print_error(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "plimsoll"
        code = _print_error(f"{error.format_message()}\ntry: {where} --help")
    except click.ClickException as error:
        code = _print_error(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        drop_rest(1)
        code = 1
    except OutputError as error:
        drop_rest(1)
        _print_error(f"cannot write to standard output: {error.strerror}")
        code = 1
    return code


def _print_error(message: str) -> int:
    click.echo(f"plimsoll: {message}", err=True)
    return 2
