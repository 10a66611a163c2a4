"""The init of containers as pid 1 of its own namespaces, and a client for its frames."""

import os
import platform
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts import need

__all__ = ["Answer", "Init", "fields", "parse_fields", "started"]

EXEC, DATA, KILL, KILL_ALL, STATUS, UNPACK, PACK, EMPTY = range(1, 9)
LISTEN, CREDIT, CLOSE, BASELINE, RESET = range(9, 14)
READY, OUT, ERR, END, CONNECT, CREDITED, CLOSED = range(64, 71)

BIN = Path(__file__).parents[1] / "src/plimsoll/sandboxes/container/init/bin"

# A small root file system, so that a test cannot change the files of this host.
ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$ROOT"
cd "$ROOT"
mkdir -m 1777 tmp
mkdir -p usr proc dev etc root old .plimsoll
mount --rbind /usr usr
mount -o remount,bind,ro usr
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
mount -t tmpfs -o mode=755 dev dev
for at in 'null 3' 'zero 5' 'urandom 9'; do mknod -m 666 dev/${at% *} c 1 ${at#* }; done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/1 dev/stdout
mkdir dev/shm dev/mqueue
mount -t tmpfs shm dev/shm
mount -t mqueue mqueue dev/mqueue
mount -t proc proc proc
printf 'root:x:0:0:root:/root:/bin/bash\\nnobody:x:65534:65534:n:/:/bin/sh\\n' > etc/passwd
printf 'root:x:0:\\nusers:x:100:nobody\\nnogroup:x:65534:\\n' > etc/group
cp "$BINARY" .plimsoll/init
pivot_root . old
cd /
umount -l old
rmdir old
exec $WRAP /.plimsoll/init
"""


# The capabilities of a container's processes, init included.
CAPABILITIES = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot"
)
AS_CONTAINER = "setpriv --inh-caps=-all --bounding-set=-all," + ",".join(
    f"+{name}" for name in CAPABILITIES.split()
)


def fields(*words: str | bytes) -> bytes:
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"".join(struct.pack("<I", len(word)) + word for word in raw)


def parse_fields(payload: bytes) -> list[str]:
    found, at = [], 0
    while at < len(payload):
        (size,) = struct.unpack_from("<I", payload, at)
        found.append(payload[at + 4 : at + 4 + size].decode(errors="surrogateescape"))
        at += 4 + size
    return found


@dataclass
class Answer:
    """The answer to one request, up to its END frame."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    credit: int = 0
    words: dict[str, str] = field(default_factory=dict[str, str])
    pairs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class Init:
    """A client of one running init. Every wait has a time limit."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._to = process.stdin.fileno()
        self._from = process.stdout.fileno()
        self._buffer = bytearray()
        self._number = 0

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        data = memoryview(struct.pack("<IBI", len(payload), kind, number) + payload)
        while data:
            data = data[os.write(self._to, data) :]

    def ask(self, kind: int, payload: bytes = b"") -> int:
        self._number += 1
        self.send(kind, self._number, payload)
        return self._number

    def frame(self, seconds: float = 20.0) -> tuple[int, int, bytes]:
        """The next frame: kind, number, payload."""
        deadline = time.monotonic() + seconds
        while True:
            if len(self._buffer) >= 9:
                size, kind, number = struct.unpack_from("<IBI", self._buffer)
                if len(self._buffer) >= 9 + size:
                    payload = bytes(self._buffer[9 : 9 + size])
                    del self._buffer[: 9 + size]
                    return kind, number, payload
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError("init sent no frame in time")
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise EOFError("init closed its output")
            self._buffer += chunk

    def silent(self, seconds: float = 0.3) -> bool:
        try:
            self.frame(seconds)
        except TimeoutError:
            return True
        return False

    def until_end(self, number: int, seconds: float = 20.0) -> Answer:
        return self.until_ends(number, seconds=seconds)[number]

    def until_ends(self, *numbers: int, seconds: float = 20.0) -> dict[int, Answer]:
        found = {number: Answer() for number in numbers}
        while not all(found[number].pairs for number in numbers):
            kind, number, payload = self.frame(seconds)
            one = found.setdefault(number, Answer())
            if kind == OUT:
                one.out += payload
            elif kind == ERR:
                one.err += payload
            elif kind == CREDITED:
                one.credit += struct.unpack("<I", payload)[0]
            elif kind == END:
                words = parse_fields(payload)
                one.pairs = list(zip(words[::2], words[1::2], strict=True))
                one.words = dict(one.pairs)
        return found

    def begin(
        self, *argv: str, flags: str = "", cwd: str = "/", user: str = "root", env: Any = ()
    ) -> int:
        return self.ask(EXEC, fields(flags, cwd, user, str(len(argv)), *argv, *env))

    def run(self, script: str, data: bytes = b"", **more: Any) -> Answer:
        """Run a shell script to its end."""
        number = self.begin(script, flags="s", **more)
        if data:
            self.send(DATA, number, data)
        self.send(DATA, number)
        return self.until_end(number)

    def said(self, script: str) -> str:
        done = self.run(script)
        assert done.words == {"exit": "0"}, (done.words, done.err)
        return done.out.decode(errors="surrogateescape")

    def request(self, kind: int, *words: str, seconds: float = 20.0) -> dict[str, str]:
        return self.until_end(self.ask(kind, fields(*words)), seconds).words

    @property
    def pid(self) -> int:
        """The process id of init outside its PID namespace."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "namespaces with a root of their own need root"
    if not (BIN / f"plimsoll-init-{platform.machine()}").exists():
        return f"there is no init for {platform.machine()}"
    missing = [tool for tool in ("unshare", "pivot_root", "setpriv") if not shutil.which(tool)]
    return f"{missing[0]} is not installed" if missing else None


@contextmanager
def started(root: Path, wrap: str = AS_CONTAINER) -> Iterator[Init]:
    """A running init that has sent READY. The end of the block kills it and its processes."""
    need("root", _why_not())
    binary = BIN / f"plimsoll-init-{platform.machine()}"
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--ipc", "sh", "-c", ROOT]
    env = {"PATH": os.environ["PATH"], "ROOT": str(root), "BINARY": str(binary), "WRAP": wrap}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            init = Init(process)
            kind, number, payload = init.frame()
            assert (kind, number) == (READY, 0)
            assert parse_fields(payload) == ["plimsoll-init", "1"]
            yield init
        finally:
            process.kill()
