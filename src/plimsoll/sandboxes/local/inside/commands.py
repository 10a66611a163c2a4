"""A command in a sandbox: its runner, and the process it becomes.

The runner is a child of init that adopts the command's orphans. While the command runs, the
whole tree hangs below the runner, so that it can be killed to the last process; when the
command itself ends, the runner goes and what is left running becomes init's.
"""

import contextlib
import json
import os
import select
import signal
from dataclasses import dataclass
from typing import Any, NoReturn

from plimsoll.sandboxes.local.inside import syscalls, wire

__all__ = ["KEPT_CAPABILITIES", "NotAUser", "find_account", "run_command"]

# What a container usually may do, less the making of device nodes: chown, dac_override,
# fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot,
# audit_write, setfcap.
KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31})

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotAUser(Exception):
    """The sandbox's /etc/passwd has no such user."""


@dataclass(frozen=True)
class Account:
    """A user of the sandbox, as its own /etc/passwd and /etc/group say."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


def find_account(user: str) -> Account:
    """Look a user up by name or number, `user` or `user:group`.

    Read by hand: the C library's lookup would load the sandbox's own libraries into a
    process that still holds every capability.
    """
    name, _, group = user.partition(":")
    accounts = _colon_file("/etc/passwd")
    groups = _colon_file("/etc/group")
    for row in accounts:
        if len(row) >= 6 and name in (row[0], row[2]):
            account = Account(int(row[2]), int(row[3]), (), row[5] or "/", row[0])
            break
    else:
        if name == "root":
            account = Account(0, 0, (), "/root", "root")
        elif name.isdigit():
            account = Account(int(name), 0, (), "/", name)
        else:
            raise NotAUser(f"the sandbox has no user {name!r}")
    gid = account.gid
    if group:
        found = [int(r[2]) for r in groups if len(r) >= 3 and group in (r[0], r[2])]
        if not found and not group.isdigit():
            raise NotAUser(f"the sandbox has no group {group!r}")
        gid = found[0] if found else int(group)
    also = tuple(int(r[2]) for r in groups if len(r) >= 4 and account.name in r[3].split(","))
    return Account(account.uid, gid, also, account.home, account.name)


def _colon_file(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n").split(":") for line in file if line.strip()]
    except OSError:
        return []


def run_command(request: dict[str, Any], stdio: list[int], stop: int, netns: int | None) -> None:
    """The runner's whole life. Writes how the command ended to the pipe `stop`'s other side."""
    syscalls.become_subreaper()
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, wire.wake_only)
    child = os.fork()
    if child == 0:
        _become(request, stdio, netns)
    for descriptor in stdio:
        os.close(descriptor)
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    poller.register(stop, select.POLLIN)
    while True:
        status = _reap(child)
        if status is not None:
            _report(stop, status)
            return
        ready = dict(poller.poll())
        if stop in ready:
            kill_descendants()
            _report(stop, signal.SIGKILL)
            return
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)


def _reap(child: int) -> int | None:
    """Collect ended children; the command's own wait status if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def _report(channel: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    outcome = {"exit": code} if code >= 0 else {"signal": -code}
    with contextlib.suppress(OSError):
        os.write(channel, json.dumps(outcome).encode())


def kill_descendants() -> None:
    """Kill every descendant of this process, and wait until they are gone.

    They are stopped first, until no new one turns up: nothing that is stopped can fork.
    """
    while True:
        stopped: set[int] = set()
        while fresh := _descendants(os.getpid()) - stopped:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            if not _descendants(os.getpid()):
                return


def _descendants(ancestor: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", "rb") as f:
                # The name in brackets may hold anything; what follows the last one is fixed.
                state, parent = f.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    parents[int(entry)] = int(parent)
    found: set[int] = set()
    grown = {ancestor}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def _become(request: dict[str, Any], stdio: list[int], netns: int | None) -> NoReturn:
    """Turn this process into the command. Its failures end as a shell's would: 126, 127."""
    code = 126
    try:
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        for number in _IGNORED_SIGNALS:  # handlers go with the exec, what is ignored stays so
            signal.signal(number, signal.SIG_DFL)
        # Memory pressure in the sandbox falls on its commands, not on its init.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        if netns is not None:
            syscalls.setns(netns, syscalls.CLONE_NEWNET)
        account = find_account(str(request["user"]))
        _drop_to(account, bool(request["single_user"]))
        os.umask(0o022)
        env = {"PATH": _SYSTEM_PATH, "HOME": account.home, "USER": account.name}
        env |= request["env"]
        argv = list(request["argv"])
        if request["shell"]:
            shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
            argv = [shell, "-c", argv[0]]
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            raise OSError(error.errno, error.strerror, request["cwd"]) from None
        code = 127
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError as error:
        _complain(error, request)
    except OSError as error:
        code = 126
        _complain(error, request)
    except NotAUser as error:
        os.write(2, f"plimsoll: {error}\n".encode())
    finally:
        os._exit(code)


def _complain(error: OSError, request: dict[str, Any]) -> None:
    name = error.filename
    what = name if isinstance(name, str) else request["argv"][0]
    with contextlib.suppress(OSError):
        os.write(2, f"plimsoll: {what}: {error.strerror}\n".encode("utf-8", "replace"))


def _drop_to(account: Account, single_user: bool) -> None:
    if not single_user:
        os.setgroups(account.groups)
    if account.gid or not single_user:
        os.setgid(account.gid)
    syscalls.drop_capabilities(KEPT_CAPABILITIES)
    if account.uid:
        os.setuid(account.uid)
    syscalls.forbid_new_privileges()
