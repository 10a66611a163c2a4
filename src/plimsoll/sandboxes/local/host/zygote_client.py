"""The client of the zygote: starts it, and requests sandboxes from it. One serves one backend."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import plimsoll
from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.host.cgroups import Cgroup
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.resources import SandboxMeta, staging_path
from plimsoll.sandboxes.local.images.image import LocalImage, overlay_name
from plimsoll.sandboxes.local.inside import wire
from plimsoll.sandboxes.protocol import SandboxSpec

__all__ = ["ZygoteClient", "prepare_sandbox"]

# A sandbox sees the command line of its init, so it contains no path of the host: Python is found
# through PATH, and the source through a variable.
_START = (
    "import os, sys; sys.path.insert(0, os.environ.pop('PLIMSOLL_SOURCE')); "
    "from plimsoll.sandboxes.local.inside.zygote import main; main(int(sys.argv[1]))"
)
_STOP_SECONDS = 5.0
_BUSY_PAUSE = 0.002
_FORK_TIMEOUT = 20.0
_POLL_SECONDS = 0.25
_STOPPED = (b"T", b"t")


class _NotServed(Exception):
    """The zygote is dead, stopped or hung. `sent`: it may still serve the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class ZygoteClient:
    """Forks sandboxes through a zygote, which is started on first use.

    A killed zygote is started again. A zygote that serves no request in time, because it is
    stopped or hangs, is replaced: its sandboxes live on, and it ends with the backend.
    """

    def __init__(self, timeout: float = _FORK_TIMEOUT) -> None:
        self._timeout = timeout
        self._zygote: _Zygote | None = None
        self._retired: list[_Zygote] = []
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._zygote.pid if self._zygote is not None else None

    async def fork(
        self, spec: dict[str, Any], channel: int, liveness: int, monitor: socket.socket
    ) -> None:
        """Fork a sandbox that answers on `channel` and holds `liveness` while it is alive.

        `monitor` is the other end of `liveness`, on which the sandbox's monitor reports its start.
        """
        stderr = ""
        for _ in range(2):
            async with self._lock:
                zygote = self._zygote = self._zygote or _Zygote()
            try:
                await zygote.fork(spec, channel, liveness, monitor, self._timeout)
            except _NotServed as failed:
                async with self._lock:
                    # Another call may have replaced it already.
                    if self._zygote is zygote:
                        self._zygote = None
                        await self._retire(zygote)
                stderr = zygote.stderr_text()
                if failed.sent and not zygote.was_withdrawn(liveness):
                    break  # its sandbox may still appear: none is created twice
            else:
                return
        raise SandboxUnavailable(f"the zygote does not answer: {stderr}")

    async def _retire(self, zygote: "_Zygote") -> None:
        zygote.withdraw_requests()
        if zygote.is_dead:
            await zygote.stop()
        else:
            self._retired.append(zygote)

    def stderr_text(self) -> str:
        """The stderr of the zygote and its sandboxes, where a crash is reported."""
        return "no output" if self._zygote is None else self._zygote.stderr_text()

    async def stop(self) -> None:
        """End all zygotes, and with them all their sandboxes."""
        zygotes = [*self._retired, *([self._zygote] if self._zygote is not None else [])]
        self._retired, self._zygote = [], None
        await asyncio.gather(*(zygote.stop() for zygote in zygotes))


class _Zygote:
    """One zygote process. Its end of the socket is open here too, so that requests that it does
    not serve can be withdrawn."""

    def __init__(self) -> None:
        self._requests, self._zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        self._stderr = os.memfd_create("plimsoll-zygote-stderr", os.MFD_CLOEXEC)
        self._final_stderr = ""
        self._withdrawn: set[int] = set()
        self._retired = False
        source = str(Path(plimsoll.__file__).parent.parent)
        interpreter = Path(sys.executable)
        self._process = subprocess.Popen(
            [interpreter.name, "-I", "-S", "-c", _START, str(self._zygote_end.fileno())],
            executable=interpreter,
            env={"PLIMSOLL_SOURCE": source, "PATH": str(interpreter.parent)},
            pass_fds=[self._zygote_end.fileno()],
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
        liveness: int,
        monitor: socket.socket,
        timeout: float,
    ) -> None:
        """Send a request, and wait until the monitor of the new sandbox reports its start."""
        deadline = time.monotonic() + timeout
        while True:
            self._check(deadline, sent=False)
            try:
                wire.send_request(self._requests, spec, [channel, liveness])
                break
            except BlockingIOError:
                await asyncio.sleep(_BUSY_PAUSE)
            except OSError:
                raise _NotServed(sent=False) from None
        while not await _is_readable(monitor, _POLL_SECONDS):
            self._check(deadline, sent=True)

    def _check(self, deadline: float, *, sent: bool) -> None:
        if self._retired or self.is_dead or self._is_stopped or time.monotonic() > deadline:
            raise _NotServed(sent=sent)

    @property
    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] in _STOPPED

    def withdraw_requests(self) -> None:
        """Remove the unread requests from the socket. No more are sent."""
        self._retired = True
        self._zygote_end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while received := wire.receive_request(self._zygote_end):
                _, descriptors = received
                self._withdrawn.add(os.fstat(descriptors[-1]).st_ino)
                for descriptor in descriptors:
                    os.close(descriptor)

    def was_withdrawn(self, liveness: int) -> bool:
        """Whether the request with this `liveness` was withdrawn."""
        return os.fstat(liveness).st_ino in self._withdrawn

    def stderr_text(self) -> str:
        if self._stderr < 0:
            return self._final_stderr
        data = os.pread(self._stderr, 4096, max(0, os.fstat(self._stderr).st_size - 4096))
        return data.decode("utf-8", "replace").strip() or "no output"

    async def stop(self) -> None:
        """End the process, and with it all its sandboxes."""
        self._requests.close()
        self._zygote_end.close()
        if self._is_stopped:
            self._process.send_signal(signal.SIGKILL)
        try:
            await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._final_stderr = self.stderr_text()
        os.close(self._stderr)
        self._stderr = -1


async def _is_readable(end: socket.socket, seconds: float) -> bool:
    """Wait until the socket has data or is closed. False after `seconds`."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(end, lambda: ready.done() or ready.set_result(None))
    try:
        await asyncio.wait([ready], timeout=seconds)
        return ready.done()
    finally:
        loop.remove_reader(end)


_SHM_MB = 64


def prepare_sandbox(
    home: Home,
    folder: Path,
    image: LocalImage,
    spec: SandboxSpec,
    cgroup: Cgroup,
    *,
    userns: bool,
    durable: bool,
    upper_mb: int | None,
) -> dict[str, Any]:
    """Create the folder with its `meta.json`, and return the spec for init.

    Init creates the rest: in the folder, or with `upper_mb` in a tmpfs of that size over it.
    """
    lowers = image.lowers(home)
    groups = {name: str(path) for name, path in cgroup.folders.items()}
    staging = staging_path(folder, spec.labels.owner)
    staging.mkdir()
    (staging / "meta.json").write_bytes(msgspec.json.encode(SandboxMeta(spec.labels, groups)))
    staging.rename(folder)
    overlays = [_overlay(home, folder, target, lower, userns) for target, lower in lowers.items()]
    return {
        "home": str(home.path),
        "mounts": home.mounts.name,
        "folder": str(folder.relative_to(home.path)),
        "upper_mb": upper_mb,
        "hostname": f"plimsoll-{folder.name}",
        "overlays": overlays,
        "overlay_options": _options(userns, durable or upper_mb is not None),
        "binds": [
            *(_bind(source, target) for source, target in image.base.binds),
            *(
                _bind(str(m.source), m.target, m.unless_there)
                for m in (*spec.mounts, *spec.supplies.mounts)
            ),
        ],
        "userns": userns,
        "cgroups": cgroup.procs_files,
        "system_calls": sorted(spec.system_calls),
        "shm_mb": _SHM_MB,
        "workdir": spec.workdir or image.workdir,
    }


def _bind(source: str, target: str, unless_there: bool = False) -> dict[str, Any]:
    return {"source": source, "target": target, "unless_there": unless_there}


def _overlay(
    home: Home, folder: Path, target: str, lower: list[str], userns: bool
) -> dict[str, Any]:
    """The spec of an overlay. Paths are relative to the home."""
    name, below = overlay_name(target), folder.relative_to(home.path)
    topmost = (home.path / lower[0]).stat()
    # In a user namespace there is one user, who owns everything that init creates.
    owner = None if userns or os.geteuid() != 0 else (topmost.st_uid, topmost.st_gid)
    return {
        "name": name,
        "target": target,
        "lower": [_escape(path) for path in lower],
        "upper": f"{below}/up/{name}",
        "work": f"{below}/work-{name}",
        "mode": stat.S_IMODE(topmost.st_mode),
        "owner": owner,
    }


def _options(userns: bool, sync: bool) -> str:
    # Files that are not kept need not survive a power failure, so no write waits for the disk.
    # It costs three more inodes in each overlay, which a tmpfs can do without.
    return (",userxattr" if userns else "") + ("" if sync else ",volatile")


def _escape(path: str) -> str:
    """Escape a path for an overlay option."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
