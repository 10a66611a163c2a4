"""A command in the sandbox, as one request to its init."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxUnavailable, SandboxUnsupported
from plimsoll.sandboxes.container.channel import Channel, Request
from plimsoll.sandboxes.container.frames import WINDOW, Kind, RequestEnd
from plimsoll.sandboxes.output import Capture
from plimsoll.sandboxes.protocol import ExecResult, OnOutput

__all__ = ["Command", "kill_request", "run_command"]

_KILL_SECONDS = 15.0
_CANNOT_RUN = 126


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, where, and as whom."""

    argv: Sequence[str]
    shell: bool
    """The one word of `argv` is a script for the sandbox's shell."""
    cwd: str
    user: str
    env: Mapping[str, str]

    def fields(self) -> list[bytes]:
        """As init wants it. `ValueError` for what no system could run."""
        for name in self.env:
            if "=" in name:
                raise ValueError(f"{name!r} cannot be the name of a variable")
        words = [
            "s" if self.shell else "", self.cwd, self.user, str(len(self.argv)), *self.argv,
            *(f"{name}={value}" for name, value in self.env.items()),
        ]  # fmt: skip
        fields = [word.encode("utf-8", "surrogateescape") for word in words]
        if any(b"\0" in field for field in fields):
            raise ValueError("a NUL byte in a command or its environment")
        return fields


class _Output:
    """What a command prints. `fault` is what the caller's own `on_output` raised."""

    def __init__(self, keep: int, on_output: OnOutput | None) -> None:
        self.stdout = Capture(keep)
        self.stderr = Capture(keep)
        self.fault: Exception | None = None
        self.request: Request | None = None
        self._on_output = on_output

    def take(self, kind: Kind, piece: bytes) -> None:
        if kind is Kind.OUT:
            self.stdout.feed(piece)
        else:
            self.stderr.feed(piece)
        if self._on_output is None:
            return
        try:
            self._on_output("stdout" if kind is Kind.OUT else "stderr", piece)
        except Exception as fault:  # noqa: BLE001 - it ends this command, not the sandbox
            self.fault, self._on_output = fault, None
            if self.request is not None:
                self.request.kill()


async def run_command(
    channel: Channel,
    command: Command,
    *,
    stdin: bytes,
    timeout: float | None,
    on_output: OnOutput | None,
    keep: int,
) -> ExecResult:
    """Run a command to its end, or kill it to its last process when time is up."""
    started = time.monotonic()
    output = _Output(keep, on_output)
    try:
        fields = command.fields()
    except ValueError as error:  # as where a program cannot be executed
        output.take(Kind.ERR, f"plimsoll: {error}\n".encode("utf-8", "backslashreplace"))
        said, timed_out = RequestEnd(exit=_CANNOT_RUN), False
    else:
        output.request = request = channel.request(Kind.EXEC, fields, output.take)
        said, timed_out = await _wait_for_end(channel, request, stdin, timeout)
    if output.fault is not None:
        raise output.fault
    return ExecResult(
        exit_code=said.exit,
        signal=said.signal,
        timed_out=timed_out,
        stdout=output.stdout.captured(),
        stderr=output.stderr.captured(),
        seconds=time.monotonic() - started,
    )


async def _wait_for_end(
    channel: Channel, request: Request, stdin: bytes, timeout: float | None
) -> tuple[RequestEnd, bool]:
    """How the command ended, and whether it had to be killed for time."""
    pouring = None
    timed_out = False
    try:
        if len(stdin) <= WINDOW:
            await request.pour(stdin)  # there is room for all of it
        else:
            pouring = asyncio.create_task(request.pour(stdin))
        await asyncio.wait([request.end], timeout=timeout)
        timed_out = not request.end.done()
    finally:
        if pouring is not None:
            pouring.cancel()
        if not request.end.done():
            await run_to_completion(kill_request(channel, request))
    said = request.end.result()
    if said.nouser:
        raise SandboxUnsupported(said.nouser)
    if said.error:
        raise SandboxUnavailable(f"a command could not be started: {said.error}")
    if (said.exit is None) == (said.signal is None):
        channel.close("the sandbox's init does not make sense")
        raise SandboxUnavailable("the sandbox's init does not make sense")
    return said, timed_out


async def kill_request(channel: Channel, request: Request) -> None:
    """Kill what a request started, and wait for its end, which comes when all of it is gone."""
    request.kill()
    done, _ = await asyncio.wait([request.end], timeout=_KILL_SECONDS)
    if not done:
        channel.close("a command in the sandbox cannot be killed")
