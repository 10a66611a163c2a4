"""Starts the zygote and asks it for sandboxes. One zygote serves one backend."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import plimsoll
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.inside import wire

__all__ = ["Forker"]

# A sandbox sees the command line of its init, so no path of the host stands there: Python
# finds itself by PATH, and the source by a variable.
_START = (
    "import os, sys; sys.path.insert(0, os.environ.pop('PLIMSOLL_SOURCE')); "
    "from plimsoll.sandboxes.local.inside.zygote import main; main(int(sys.argv[1]))"
)
_STOP_SECONDS = 5.0
_BUSY_PAUSE = 0.002


class Forker:
    """The zygote process, started when first needed and again if it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._stderr: int | None = None
        self._changing = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def fork(self, spec: dict[str, Any], channel: int, life: int) -> None:
        """Have a sandbox made that answers on `channel` and holds `life` while it lives."""
        for _ in range(2):
            async with self._changing:
                requests = self._requests or self._start()
            try:
                await self._send(requests, spec, channel, life)
            except OSError:
                async with self._changing:
                    # It was killed, and its sandboxes with it. Another call may have seen it too.
                    if self._requests is requests:
                        await self.stop()
            else:
                return
        raise SandboxUnavailable(f"the sandbox starter does not run: {self.last_words()}")

    async def _send(
        self, requests: socket.socket, spec: dict[str, Any], channel: int, life: int
    ) -> None:
        while requests is self._requests:
            try:
                wire.send_request(requests, spec, [channel, life])
            except BlockingIOError:
                await asyncio.sleep(_BUSY_PAUSE)
            else:
                return
        raise ConnectionResetError

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._stderr = os.memfd_create("plimsoll-zygote-stderr", os.MFD_CLOEXEC)
        source = str(Path(plimsoll.__file__).parent.parent)
        interpreter = Path(sys.executable)
        with theirs:
            self._process = subprocess.Popen(
                [interpreter.name, "-I", "-S", "-c", _START, str(theirs.fileno())],
                executable=interpreter,
                env={"PLIMSOLL_SOURCE": source, "PATH": str(interpreter.parent)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd="/",
            )
        self._requests = ours
        return ours

    def last_words(self) -> str:
        """What the zygote, or a sandbox's init, said before it died of a fault of ours."""
        if self._stderr is None:
            return "it said nothing"
        words = os.pread(self._stderr, 4096, max(0, os.fstat(self._stderr).st_size - 4096))
        return words.decode("utf-8", "replace").strip() or "it said nothing"

    async def stop(self) -> None:
        """End the zygote and with it every sandbox it made."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            process, self._process = self._process, None
            try:
                await asyncio.to_thread(process.wait, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
