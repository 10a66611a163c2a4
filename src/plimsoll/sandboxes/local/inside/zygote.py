"""The zygote: a small process without threads that forks the keeper of each sandbox.

Forking it is quicker than starting an interpreter for each sandbox, and forking
Plimsoll itself, with its threads and its memory, is not safe. It ends when the socket to
Plimsoll closes, and every sandbox ends with it.
"""

import contextlib
import gc
import os
import signal
import socket
import sys

from plimsoll.sandboxes.local.inside import (
    monitor,
    seccomp,
    syscalls,
    wire,
)

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Serve until the other side is gone."""
    # Ctrl-C in a terminal reaches the whole process group; Plimsoll decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers
    requests = socket.socket(fileno=descriptor)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.umask(0o022)
    with contextlib.suppress(OSError):  # a kernel without keyrings
        syscalls.join_session_keyring()
    _stop_importing()
    gc.disable()
    gc.freeze()
    while (received := wire.receive_request(requests)) is not None:
        spec, fds = received
        with contextlib.suppress(OSError):  # which the sandbox's init finds again, and says
            # Compiled here once for all sandboxes that allow the same calls.
            seccomp.compile_filter(frozenset(spec["system_calls"]), os.uname().machine)
        _fork_keeper(spec, fds, requests)
        for descriptor in fds:
            os.close(descriptor)


def _stop_importing() -> None:
    """From here on an import is an error: in a sandbox's root a module could be anybody's."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def _fork_keeper(spec: dict[str, object], fds: list[int], requests: socket.socket) -> None:
    me = os.getpid()
    if os.fork():
        return
    try:
        syscalls.die_with_parent(me)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        os.setsid()
        channel, life = (socket.socket(fileno=x) for x in fds)
        monitor.keep(spec, channel, life)
    except BaseException as error:  # noqa: BLE001 - the last words of a forked process
        wire.last_words("keeper", error)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
