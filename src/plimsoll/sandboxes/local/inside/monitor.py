"""The monitor of a sandbox: creates its namespaces, forks its init, and waits for its end.

It stays outside the sandbox's pid namespace and dies with the zygote. Init dies with the monitor.
"""

import contextlib
import fcntl
import os
import socket
import struct
from typing import Any

from plimsoll.sandboxes.local.inside import filesystem, seccomp, syscalls, wire
from plimsoll.sandboxes.local.inside.commands import KEPT_CAPABILITIES
from plimsoll.sandboxes.local.inside.init import Init

__all__ = ["run_monitor"]

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def run_monitor(spec: dict[str, Any], channel: socket.socket, liveness: socket.socket) -> None:
    """Run one sandbox until its init ends. Failures are reported on the channel.

    `liveness` stays open in this process alone. It carries the pid of this process, and at the end
    the report that init, and so every process of the sandbox, has ended. If it closes without the
    report, processes may be left. While init sets up its file system, this process adds it to its
    control groups, which costs a grace period of the kernel, and creates its network. From then on
    paths lead into the sandbox, for this process too, so files are opened by path before.
    """
    try:
        liveness.send(str(os.getpid()).encode())
        _unshare(spec)
        groups = [_open_group(path) for path in spec["cgroups"]]
        namespaces = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        our_end, init_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        init = os.fork()
        if init == 0:
            our_end.close()
            liveness.close()
            _run_init(spec, channel, init_end)
        init_end.close()
        _enter_loopback_network()
        for group in groups:
            _try("join the control group", os.write, group, str(init).encode())
        netns = os.open("net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=namespaces)
        channel.close()
        with contextlib.suppress(BrokenPipeError):  # init failed, and has reported it
            socket.send_fds(our_end, [b"G"], [netns])
        our_end.close()
        os.waitpid(init, 0)
        with contextlib.suppress(OSError):  # the owner is dead
            liveness.send(b"ended")
    except filesystem.SetUpFailed as error:
        _fail(channel, error)


def _unshare(spec: dict[str, Any]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if spec["userns"]:
        _try("make a user namespace", syscalls.unshare, syscalls.CLONE_NEWUSER)
        _try("map the user", _write, "/proc/self/setgroups", "deny")
        _try("map the user", _write, "/proc/self/uid_map", f"0 {uid} 1")
        _try("map the user", _write, "/proc/self/gid_map", f"0 {gid} 1")
    kinds = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC
    _try("make namespaces", syscalls.unshare, kinds | syscalls.CLONE_NEWUTS)
    flags = syscalls.MS_REC | syscalls.MS_PRIVATE
    _try("make mounts private", syscalls.mount, None, "/", None, flags)


def _try(step: str, action: Any, *arguments: Any) -> Any:  # noqa: ANN401
    try:
        return action(*arguments)
    except OSError as error:
        raise filesystem.SetUpFailed(step, error) from None


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _open_group(path: str) -> int:
    return _try("join the control group", os.open, path, os.O_WRONLY | os.O_CLOEXEC)


def _enter_loopback_network() -> None:
    """Move this process into a new network namespace that has only loopback."""
    _try("make a network namespace", syscalls.unshare, syscalls.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", answer, 16)
        request = struct.pack("16sh14x", b"lo", flags | _IFF_UP)
        _try("bring loopback up", fcntl.ioctl, any_socket, _SIOCSIFFLAGS, request)


def _run_init(spec: dict[str, Any], channel: socket.socket, monitor: socket.socket) -> None:
    """Run init in the forked child. Never returns."""
    try:
        # In its own pid namespace it sees its parent, which is outside, as 0.
        syscalls.die_with_parent(0)
        syscalls.hide_memory()
        socket.sethostname(spec["hostname"])
        os.setsid()
        memory = filesystem.enter_root(spec)
        syscalls.limit_capabilities(KEPT_CAPABILITIES)
        _filter_system_calls(frozenset(spec["system_calls"]))
        data, fds = wire.receive_fds(monitor, 1)
        monitor.close()
        if data:
            wire.send_reply(channel, {"ready": True}, [] if memory is None else [memory])
            if memory is not None:
                os.close(memory)
            Init(channel, fds[0], bool(spec["userns"])).serve()
    except filesystem.SetUpFailed as error:
        _fail(channel, error)
    except BaseException as error:  # noqa: BLE001 - reported on stderr by the forked process
        wire.report_crash("init", error)
    finally:
        os._exit(0)


def _filter_system_calls(allowed: frozenset[str]) -> None:
    """Leave the host's keyrings, and filter the system calls of this process and its children."""
    try:
        syscalls.join_session_keyring()
    except OSError as error:
        # If the calls are denied, the zygote's empty keyring will do: the quota of keys is small.
        if "keyrings" in allowed:
            raise filesystem.SetUpFailed("join a new session keyring", error) from None
    program = _try("filter system calls", seccomp.compile_filter, allowed, os.uname().machine)
    _try("filter system calls", seccomp.install, program)


def _fail(channel: socket.socket, error: filesystem.SetUpFailed) -> None:
    with contextlib.suppress(OSError):
        wire.send_reply(channel, {"failed": str(error), "step": error.step, "errno": error.number})
