"""The zygote: a small process without threads that forks the monitor of each sandbox.

A fork is quicker than a new interpreter for each sandbox, and forking Plimsoll itself, with its
threads and its memory, is not safe. It ends when the socket to Plimsoll closes, and all its
sandboxes end with it.
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
    """Serve requests until the other side is gone."""
    # Ctrl-C in a terminal reaches the whole process group; Plimsoll decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps monitors
    requests = socket.socket(fileno=descriptor)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.umask(0o022)
    with contextlib.suppress(OSError):  # a kernel without keyrings
        syscalls.join_session_keyring()
    _disable_imports()
    gc.disable()
    gc.freeze()
    while (received := wire.receive_request(requests)) is not None:
        spec, fds = received
        with contextlib.suppress(OSError):  # init meets the same error and reports it
            # Compiled and cached here, for all sandboxes that allow the same calls.
            seccomp.compile_filter(frozenset(spec["system_calls"]), os.uname().machine)
        _fork_monitor(spec, fds, requests)
        for descriptor in fds:
            os.close(descriptor)


def _disable_imports() -> None:
    """Make every later import fail: modules in a sandbox's root are not trusted."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def _fork_monitor(spec: dict[str, object], fds: list[int], requests: socket.socket) -> None:
    zygote = os.getpid()
    if os.fork():
        return
    try:
        syscalls.die_with_parent(zygote)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        os.setsid()
        channel, liveness = (socket.socket(fileno=x) for x in fds)
        monitor.run_monitor(spec, channel, liveness)
    except BaseException as error:  # noqa: BLE001 - reported on stderr by the forked process
        wire.report_crash("monitor", error)
    finally:
        os._exit(0)
