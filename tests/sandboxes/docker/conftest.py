"""A client of the shared daemon, and a daemon that a test may stop, freeze and kill."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from helpers import processes_with
from parts import IMAGES, need, why_no_daemon
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import find_endpoint


@pytest.fixture
async def daemon(docker_daemon: str) -> AsyncIterator[Daemon]:
    """A client of the daemon that tests use, without a backend."""
    async with Daemon(find_endpoint(docker_daemon, None, {})) as opened:
        yield opened


class Dockerd:
    """A Docker daemon started by the tests. Its network has no route outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 120) -> None:
        """Start it, with the data of the last start if there was one, and wait until it answers."""
        (self.folder / "pid").unlink(missing_ok=True)
        self._end_containerd()
        # In a network namespace of its own: without a bridge it would remove the host's docker0.
        words = ["unshare", "--net", "dockerd", "-H", self.url, "--bridge", "none"]
        for option in ("data-root", "exec-root", "pidfile"):
            words += [f"--{option}", str(self.folder / option.removesuffix("file"))]
        words += ["--shutdown-timeout", "1", "--cgroup-parent", f"/{self.folder.name}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, process_group=0)
        deadline = time.monotonic() + seconds
        while self._docker("version").returncode:
            log_end = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"dockerd ended: {log_end}"
            assert time.monotonic() < deadline, f"dockerd does not answer: {log_end}"
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Signal the daemon: SIGSTOP freezes it, SIGCONT resumes it, SIGKILL is a crash."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, seconds: float = 20) -> None:
        """Stop the daemon and its containers. May be called again."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def load(self, source: str) -> None:
        """Copy the images that tests use from another daemon."""
        words = ["docker", "-H", source, "save", *IMAGES]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=_plain_env()) as save:
            loaded = self._docker("load", stdin=save.stdout)
        assert save.returncode == loaded.returncode == 0, loaded.stderr

    def clear(self) -> None:
        """Remove everything that tests left, except the base images."""
        for list_all, remove in (
            (("ps", "-aq"), ("rm", "-fv")),
            (("images", "-q", "--filter", "label=plimsoll.run"), ("rmi", "-f")),
        ):
            if found := sorted(set(self._docker(*list_all).stdout.decode().split())):
                self._docker(*remove, *found)
        self._docker("network", "prune", "-f")
        self._docker("volume", "prune", "-f")

    def remove(self) -> None:
        """Remove all of its processes, control groups and mounts, also after a kill."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in _processes_in(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted(
            (m for m in mounts if Path(m).is_relative_to(self.folder)), reverse=True
        ):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        # A walk ignores folders that are removed meanwhile; a glob does not.
        groups = [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup")]
        for group in groups:
            if group.name == self.folder.name:
                _remove_group(group)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_containerd(self) -> None:
        """Kill containerd: the next dockerd cannot use one that outlived its own."""
        for pid in processes_with(f"{self.folder}/exec-root/containerd/containerd.toml"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder / "exec-root/containerd", ignore_errors=True)

    def _docker(self, *words: str, stdin: object = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", "-H", self.url, *words],
            stdin=stdin,  # pyright: ignore[reportArgumentType]
            capture_output=True,
            check=False,
            env=_plain_env(),
            timeout=60,
        )


def _plain_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}


def _processes_in(folder: Path) -> list[int]:
    """The processes of a daemon's containers, by control group, and their shims."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            groups = (entry / "cgroup").read_text()
            if f"{folder}/".encode() in words or f"/{folder.name}/" in groups:
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _remove_group(group: Path) -> None:
    for below in [path for path in group.iterdir() if path.is_dir()]:
        _remove_group(below)
    deadline = time.monotonic() + 30  # killed processes may take a moment to end
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.02)


@pytest.fixture(scope="session")
def _own_dockerd(docker_daemon: str) -> Iterator[Dockerd]:
    missing = [name for name in ("dockerd", "docker") if shutil.which(name) is None]
    need("docker", f"{' and '.join(missing)} are not installed" if missing else None)
    need("docker", None if os.geteuid() == 0 else "only root can start a daemon")
    made = Dockerd(Path(tempfile.mkdtemp(prefix="plimsoll-dockerd-", dir="/var/tmp")))
    try:
        made.start()
        made.load(docker_daemon)
        yield made
    finally:
        made.remove()


@pytest.fixture
def dockerd(_own_dockerd: Dockerd) -> Dockerd:
    """A daemon that a test may stop, freeze and kill. It is up when the test starts."""
    if why_no_daemon(_own_dockerd.url) is not None:
        _own_dockerd.restart()
    _own_dockerd.clear()
    return _own_dockerd
