"""Starts the zygote and asks it for sandboxes. One zygote serves one backend."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import plimsoll
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.inside import wire

__all__ = ["ZygoteClient"]

# A sandbox sees the command line of its init, so no path of the host stands there: Python
# finds itself by PATH, and the source by a variable.
_START = (
    "import os, sys; sys.path.insert(0, os.environ.pop('PLIMSOLL_SOURCE')); "
    "from plimsoll.sandboxes.local.inside.zygote import main; main(int(sys.argv[1]))"
)
_STOP_SECONDS = 5.0
_BUSY_PAUSE = 0.002
_FORK_SECONDS = 20.0
_LOOK_SECONDS = 0.25
_STOPPED = (b"T", b"t")


class _NotTaken(Exception):
    """The zygote is dead, stopped or hung. `sent`: it may yet take the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class ZygoteClient:
    """Has sandboxes forked by a zygote, which is started when first needed.

    One that was killed is started again. One that takes no request in time, since it is stopped
    or hangs, is replaced: its sandboxes live on, and it is ended with the backend.
    """

    def __init__(self, patience: float = _FORK_SECONDS) -> None:
        self._patience = patience
        self._zygote: _Zygote | None = None
        self._retired: list[_Zygote] = []
        self._changing = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._zygote.pid if self._zygote is not None else None

    async def fork(
        self, spec: dict[str, Any], channel: int, life: int, born: socket.socket
    ) -> None:
        """Have a sandbox made that answers on `channel` and holds `life` while it lives.

        `born` is the other end of `life`; its keeper says the first word there.
        """
        words = ""
        for _ in range(2):
            async with self._changing:
                zygote = self._zygote = self._zygote or _Zygote()
            try:
                await zygote.fork(spec, channel, life, born, self._patience)
            except _NotTaken as failed:
                async with self._changing:
                    # Another call may have seen it too.
                    if self._zygote is zygote:
                        self._zygote = None
                        await self._retire(zygote)
                words = zygote.last_words()
                if failed.sent and not zygote.gave_back(life):
                    break  # its sandbox may still come: none is made twice
            else:
                return
        raise SandboxUnavailable(f"the sandbox starter does not answer: {words}")

    async def _retire(self, zygote: "_Zygote") -> None:
        zygote.take_back()
        if zygote.is_dead:
            await zygote.stop()
        else:
            self._retired.append(zygote)

    def last_words(self) -> str:
        """What the zygote, or a sandbox's init, said before it died of a fault of ours."""
        return "it said nothing" if self._zygote is None else self._zygote.last_words()

    async def stop(self) -> None:
        """End every zygote and with them every sandbox they made."""
        zygotes = [*self._retired, *([self._zygote] if self._zygote is not None else [])]
        self._retired, self._zygote = [], None
        await asyncio.gather(*(zygote.stop() for zygote in zygotes))


class _Zygote:
    """One zygote process. Its end of the socket is open here too, so that a request that it does
    not take can be taken back."""

    def __init__(self) -> None:
        self._requests, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        self._stderr = os.memfd_create("plimsoll-zygote-stderr", os.MFD_CLOEXEC)
        self._words = ""
        self._given_back: set[int] = set()
        self._retired = False
        source = str(Path(plimsoll.__file__).parent.parent)
        interpreter = Path(sys.executable)
        self._process = subprocess.Popen(
            [interpreter.name, "-I", "-S", "-c", _START, str(self._theirs.fileno())],
            executable=interpreter,
            env={"PLIMSOLL_SOURCE": source, "PATH": str(interpreter.parent)},
            pass_fds=[self._theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    async def fork(
        self,
        spec: dict[str, Any],
        channel: int,
        life: int,
        born: socket.socket,
        patience: float,
    ) -> None:
        """Send a request, and wait until the keeper that it makes says its first word."""
        deadline = time.monotonic() + patience
        while True:
            self._check(deadline, sent=False)
            try:
                wire.send_request(self._requests, spec, [channel, life])
                break
            except BlockingIOError:
                await asyncio.sleep(_BUSY_PAUSE)
            except OSError:
                raise _NotTaken(sent=False) from None
        while not await _is_readable(born, _LOOK_SECONDS):
            self._check(deadline, sent=True)

    def _check(self, deadline: float, *, sent: bool) -> None:
        if self._retired or self.is_dead or self._is_stopped or time.monotonic() > deadline:
            raise _NotTaken(sent=sent)

    @property
    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] in _STOPPED

    def take_back(self) -> None:
        """Take the requests that wait out of the socket. From now on there are none."""
        self._retired = True
        self._theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while received := wire.receive_request(self._theirs):
                _, descriptors = received
                self._given_back.add(os.fstat(descriptors[-1]).st_ino)
                for descriptor in descriptors:
                    os.close(descriptor)

    def gave_back(self, life: int) -> bool:
        """Whether the request with this `life` was taken back."""
        return os.fstat(life).st_ino in self._given_back

    def last_words(self) -> str:
        if self._stderr < 0:
            return self._words
        words = os.pread(self._stderr, 4096, max(0, os.fstat(self._stderr).st_size - 4096))
        return words.decode("utf-8", "replace").strip() or "it said nothing"

    async def stop(self) -> None:
        """End the process and with it every sandbox it made."""
        self._requests.close()
        self._theirs.close()
        if self._is_stopped:
            self._process.send_signal(signal.SIGKILL)
        try:
            await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._words = self.last_words()
        os.close(self._stderr)
        self._stderr = -1


async def _is_readable(end: socket.socket, seconds: float) -> bool:
    """Wait until there is something to read, or nothing any more; False if that takes longer."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(end, lambda: ready.done() or ready.set_result(None))
    try:
        await asyncio.wait([ready], timeout=seconds)
        return ready.done()
    finally:
        loop.remove_reader(end)
