"""The init of a sandbox: pid 1 of its namespace. Reaps orphans and starts commands.

It serves requests from its channel until that closes, because the sandbox is closed or Plimsoll is
dead. Then it exits, and the kernel kills all processes of the namespace. It imports nothing after
it has entered the sandbox's root, where modules are not trusted.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from plimsoll.sandboxes import trees
from plimsoll.sandboxes.local.inside import (
    commands,
    listener,
    rlimits,
    syscalls,
    wire,
)
from plimsoll.sandboxes.trees import removal

__all__ = ["Init"]

_KILL_SECONDS = 10.0
_CATCH_SECONDS = 1.0


class Init:
    """Serves one sandbox. `netns` is the network namespace that has only loopback."""

    def __init__(self, channel: socket.socket, netns: int, single_user: bool) -> None:
        self._channel = channel
        self._netns = netns
        self._single_user = single_user
        self._limits = rlimits.effective_limits()
        # Opened before any command runs: later the path is not trusted.
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """The number of the request of each child, and the socket to it, by the child's pid."""

    def serve(self) -> None:
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, wire.ignore_signal)
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self._reap()
            if self._channel.fileno() in ready and not self._serve_one():
                return

    def _serve_one(self) -> bool:
        received = wire.receive_request(self._channel)
        if received is None:
            return False
        request, fds = received
        try:
            self._dispatch(request, fds)
        except Exception as error:  # noqa: BLE001 - no request may end init: the error is the reply
            self._reply(int(request["id"]), error=f"{type(error).__name__}: {error}")
        finally:
            for descriptor in fds:
                os.close(descriptor)
        return True

    def _dispatch(self, request: dict[str, Any], fds: list[int]) -> None:
        number = int(request["id"])
        match request["op"]:
            case "exec":
                self._exec(number, request, fds)
            case "kill":
                self._kill(int(request["target"]))
            case "kill_all":
                self._kill_all(number)
            case "count":
                others = [x for x in os.listdir("/proc") if x.isdigit() and x != "1"]
                self._reply(number, count=len(others))
            case "listen":
                port, netns = int(request["port"]), None if request["network"] else self._netns
                self._spawn(number, lambda end: listener.listen(port, end, netns))
            case "pack":
                self._spawn(number, lambda end: _pack(request, fds[0], end))
            case "unpack":
                self._spawn(number, lambda end: _unpack(request, fds[0], end))
            case "empty":
                self._spawn(number, lambda end: _empty(request["path"], request["mode"], end))
            case unknown:
                self._reply(number, error=f"unknown request {unknown!r}")

    def _exec(self, number: int, request: dict[str, Any], fds: list[int]) -> None:
        request["single_user"] = self._single_user
        netns = None if request["network"] else self._netns
        stdio = fds if request["stdin"] else [self._null, *fds]

        def run(end: int) -> None:
            commands.run_command(request, stdio, end, netns, self._limits)

        try:
            self._spawn(number, run)
        except BlockingIOError:
            self._reply(number, **commands.process_limit_outcome(stdio[2]))

    def _spawn(self, number: int, work: Callable[[int], None]) -> None:
        """Fork a child that runs `work` with its socket. The reply is sent when it ends."""
        our_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                our_end.close()
                self._channel.close()
                for _, other in self._children.values():
                    other.close()
                work(child_end.fileno())
            except BaseException as error:  # noqa: BLE001 - reported on stderr by the forked process
                wire.report_crash("runner", error)
            finally:
                os._exit(0)
        child_end.close()
        self._children[pid] = (number, our_end)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._children:
                    self._forward_reply(*self._children.pop(pid))

    def _forward_reply(self, number: int, end: socket.socket) -> None:
        """Forward the reply of a child. A child without one was killed from inside."""
        try:
            data, fds = wire.receive_fds(end, 1, wire.REPLY_BYTES)
        except OSError:
            data, fds = b"", []
        end.close()
        outcome = json.loads(data) if data else {"signal": int(signal.SIGKILL)}
        wire.send_reply(self._channel, {**outcome, "id": number}, fds)
        for descriptor in fds:
            os.close(descriptor)

    def _kill(self, target: int) -> None:
        """Kill all processes of a request, then send its reply."""
        for pid, (number, end) in list(self._children.items()):
            if number == target:
                del self._children[pid]
                killed = commands.kill_tree(pid, time.monotonic() + _CATCH_SECONDS)
                if killed is None:
                    # It forks faster than it can be killed, so all processes are killed: one signal
                    # to all of them leaves none the time to fork.
                    self._kill_all_processes()
                else:
                    self._wait_until_gone(killed)
                self._forward_reply(number, end)

    def _wait_until_gone(self, pids: set[int]) -> None:
        deadline = time.monotonic() + _KILL_SECONDS
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.0005)

    def _kill_all(self, number: int) -> None:
        if self._kill_all_processes():
            self._reply(number, done=True)
        else:
            self._reply(number, error="processes of the sandbox do not die")

    def _kill_all_processes(self) -> bool:
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                self._reap()
                return True
            self._reap()
            time.sleep(0.0005)
        return False

    def _reply(self, number: int, **fields: object) -> None:
        wire.send_reply(self._channel, {"id": number, **fields})


def _pack(request: dict[str, Any], descriptor: int, end: int) -> None:
    with open(descriptor, "wb", buffering=1 << 16, closefd=False) as out:
        work = trees.pack if request["follow"] else trees.pack_unless_link
        _run_unprivileged(end, lambda: work(request["path"], out) or {})


def _unpack(request: dict[str, Any], descriptor: int, end: int) -> None:
    def unpack() -> dict[str, Any]:
        owner = None
        if request["owner"]:
            account = commands.find_account(request["owner"])
            owner = (account.uid, account.gid)
        rules = trees.Rules(
            as_image=request["as_image"],
            keep_owners=request["keep_owners"],
            owner=owner,
            mode=request["mode"],
        )
        return trees.unpack(stream, request["path"], rules)

    with open(descriptor, "rb", buffering=1 << 16, closefd=False) as stream:
        _run_unprivileged(end, unpack)


def _empty(path: str, mode: int, end: int) -> None:
    _run_unprivileged(end, lambda: removal.make_empty(path, mode) or {})


def _run_unprivileged(end: int, work: Callable[[], dict[str, Any]]) -> None:
    """Run `work` with the capabilities of a command, and write its outcome to `end`."""
    syscalls.drop_capabilities(commands.KEPT_CAPABILITIES)
    try:
        outcome = {"done": True, **work()}
    except (trees.TreeError, commands.UnknownUser) as error:
        outcome = {"error": str(error)}
    except OSError as error:
        outcome = {"error": f"{error.filename or 'transfer'}: {error.strerror}"}
    os.write(end, wire.encode_reply(outcome))
