"""Commands in the sandbox, each as one request to its init."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxUnavailable, SandboxUnsupported
from plimsoll.sandboxes.container.channel import PROTOCOL_ERROR, Channel, Request
from plimsoll.sandboxes.container.frames import WINDOW, Kind, RequestEnd
from plimsoll.sandboxes.output import Capture
from plimsoll.sandboxes.protocol import ExecResult, OnOutput

__all__ = ["Command", "kill_request", "run_command"]

_KILL_SECONDS = 15.0
_CANNOT_RUN = 126


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its working directory, user and environment."""

    argv: Sequence[str]
    shell: bool
    """`argv` is one script for the sandbox's shell."""
    cwd: str
    user: str
    env: Mapping[str, str]

    def fields(self) -> list[bytes]:
        """The fields of the request. Raises `ValueError` for a command that cannot be run."""
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
    """The output of a command. `fault` is an exception of the caller's `on_output`."""

    def __init__(self, keep: int, on_output: OnOutput | None) -> None:
        self.stdout = Capture(keep)
        self.stderr = Capture(keep)
        self.fault: Exception | None = None
        self.request: Request | None = None
        self._on_output = on_output

    def add(self, kind: Kind, chunk: bytes) -> None:
        if kind is Kind.OUT:
            self.stdout.feed(chunk)
        else:
            self.stderr.feed(chunk)
        if self._on_output is None:
            return
        try:
            self._on_output("stdout" if kind is Kind.OUT else "stderr", chunk)
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
    """Run a command until it ends; on timeout all its processes are killed."""
    started = time.monotonic()
    output = _Output(keep, on_output)
    try:
        request = channel.request(Kind.EXEC, command.fields(), output.add)
    except ValueError as error:  # reported like a program that cannot be executed
        output.add(Kind.ERR, f"plimsoll: {error}\n".encode("utf-8", "backslashreplace"))
        end, timed_out = RequestEnd(exit=_CANNOT_RUN), False
    else:
        output.request = request
        end, timed_out = await _wait_for_end(channel, request, stdin, timeout)
    if output.fault is not None:
        raise output.fault
    return ExecResult(
        exit_code=end.exit,
        signal=end.signal,
        timed_out=timed_out,
        stdout=output.stdout.captured(),
        stderr=output.stderr.captured(),
        seconds=time.monotonic() - started,
    )


async def _wait_for_end(
    channel: Channel, request: Request, stdin: bytes, timeout: float | None
) -> tuple[RequestEnd, bool]:
    """Wait for the end of the command. Returns it, and whether the timeout expired."""
    stdin_task = None
    timed_out = False
    try:
        if len(stdin) <= WINDOW:
            await request.send_all(stdin)  # fits into the window
        else:
            stdin_task = asyncio.create_task(request.send_all(stdin))
        await asyncio.wait([request.end], timeout=timeout)
        timed_out = not request.end.done()
    finally:
        if stdin_task is not None:
            stdin_task.cancel()
        if not request.end.done():
            await run_to_completion(kill_request(channel, request))
    end = request.end.result()
    if end.nouser:
        raise SandboxUnsupported(end.nouser)
    if end.error:
        raise SandboxUnavailable(f"a command could not be started: {end.error}")
    if (end.exit is None) == (end.signal is None):
        channel.close(PROTOCOL_ERROR)
        raise SandboxUnavailable(PROTOCOL_ERROR)
    return end, timed_out


async def kill_request(channel: Channel, request: Request) -> None:
    """Kill all processes of a request and wait for its end."""
    request.kill()
    done, _ = await asyncio.wait([request.end], timeout=_KILL_SECONDS)
    if not done:
        channel.close("a command in the sandbox cannot be killed")
