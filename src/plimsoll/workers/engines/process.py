"""Workers as processes of this host: nothing else to install, and no other service.

Each leads its own process group, so that it ends with all its child processes, and Ctrl-C in the
run's terminal reaches only the run.
"""

import asyncio
import collections
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from plimsoll.core.errors import WorkerError
from plimsoll.workers.engines.protocol import Credentials, Exit, StartRequest

__all__ = ["ProcessEngine", "WorkerProcess"]

_COMMAND = (sys.executable, "-P", "-m", "plimsoll.workers.worker.main")
_OUTPUT_BYTES = 8_192
_OUTPUT_LINES = 20


class WorkerProcess:
    """A worker process of this host. The loop observes its exit at once; it leaves no zombie."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        output: int,
        on_end: Callable[["WorkerProcess"], None],
    ) -> None:
        self._process = process
        self._output = output
        self._on_end = on_end
        self._tail = collections.deque[bytes]()
        self._tail_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        self._watched = os.pidfd_open(process.pid)
        self._loop.add_reader(self._watched, self._handle_exit)
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read)

    @property
    def where(self) -> str:
        return f"pid {self._process.pid}"

    @property
    def is_placed(self) -> bool:
        return True

    async def ended(self) -> Exit:
        # Shielded: cancelling one waiter does not affect the others.
        return await asyncio.shield(self._end)

    async def kill(self) -> None:
        if not self._end.done():
            self._kill_group()
        await self.ended()

    def _kill_group(self) -> None:
        """Kill the process group. Its leader is not reaped yet, so the id cannot be reused."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _handle_exit(self) -> None:
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        self._kill_group()
        code = self._process.wait()  # it has exited: this only reaps it
        self._read()
        if self._output >= 0:
            self._close_output()
        how = f"killed by signal {-code}" if code < 0 else f"exit {code}"
        self._end.set_result(Exit(how, self._last_output(), killed=code < 0))
        self._on_end(self)

    def _read(self) -> None:
        """Keep the tail of its output. Read continuously, or a full pipe would block the worker."""
        while self._output >= 0:
            try:
                piece = os.read(self._output, 65_536)
            except BlockingIOError:
                return
            if not piece:
                self._close_output()
                return
            self._tail.append(piece[-_OUTPUT_BYTES:])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= _OUTPUT_BYTES:
                self._tail_bytes -= len(self._tail.popleft())

    def _close_output(self) -> None:
        self._loop.remove_reader(self._output)
        os.close(self._output)
        self._output = -1

    def _last_output(self) -> str:
        text = b"".join(self._tail)[-_OUTPUT_BYTES:].decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-_OUTPUT_LINES:])


class ProcessEngine:
    """Starts workers as processes of this host."""

    def __init__(self) -> None:
        self._alive: set[WorkerProcess] = set()

    @property
    def host(self) -> str:
        return "127.0.0.1"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._alive))

    def describe_wait(self, workers: int) -> str:
        return f"starting {workers} workers"  # workers are placed at once, on this host

    async def start(self, request: StartRequest) -> WorkerProcess:
        credentials = Credentials.make(request.invitation)
        request.admit(credentials.public_key)
        return self.launch(credentials, request.environment)

    def launch(self, credentials: Credentials, environment: dict[str, str]) -> WorkerProcess:
        """Start the process of an admitted worker."""
        try:
            output, child_end = os.pipe()
        except OSError as error:
            raise _cannot_start(error) from error
        try:
            process = _begin(environment, child_end)
        except OSError as error:
            os.close(output)
            raise _cannot_start(error) from error
        finally:
            os.close(child_end)
        try:
            worker = WorkerProcess(process, output, self._alive.discard)
        except OSError as error:
            # No task would observe its exit.
            os.close(output)
            _end_now(process)
            raise _cannot_start(error) from error
        self._alive.add(worker)
        _write_credentials(process, credentials)
        return worker


def _cannot_start(error: OSError) -> WorkerError:
    more = "; raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else ""
    return WorkerError(f"{sys.executable} cannot be started: {error}{more}")


def _end_now(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with process:  # waits for the process and closes its standard input
        pass


def _begin(environment: dict[str, str], output: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (*_COMMAND, str(os.getpid())),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **environment},
        start_new_session=True,
    )


def _write_credentials(process: "subprocess.Popen[bytes]", credentials: Credentials) -> None:
    """Write the credentials to standard input: other users can read arguments and variables."""
    assert process.stdin is not None
    data = msgspec.json.encode(credentials)
    # Fits into a pipe, so this never blocks. The exit of a dead process is observed elsewhere.
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(data)
