"""Commands in a sandbox: the accounts, the runner, and the command process itself.

The runner is a child of init that adopts the orphans of the command. While the command runs, its
whole process tree is below the runner, so init can kill all of it. When the command ends, the
runner exits, and the remaining processes become children of init.
"""

import contextlib
import os
import signal
import stat
import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from plimsoll.sandboxes.local.inside import rlimits, syscalls, wire

__all__ = [
    "KEPT_CAPABILITIES",
    "UnknownUser",
    "find_account",
    "kill_tree",
    "process_limit_outcome",
    "run_command",
]

# The usual capabilities of a container without device nodes and raw packets: chown, dac_override,
# fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, audit_write,
# setfcap.
KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31})

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
_STOPPED_STATES = (b"T", b"t", b"Z", b"X")
_MAX_ACCOUNT_BYTES = 1 << 20
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnknownUser(Exception):
    """The user or group does not exist in the sandbox."""


@dataclass(frozen=True)
class Account:
    """A user of the sandbox, from its own /etc/passwd and /etc/group."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


def find_account(user: str) -> Account:
    """Look a user up by name or number, `user` or `user:group`.

    Does not use the C library, which would load the sandbox's own libraries into a process that
    still has all capabilities.
    """
    name, _, group = user.partition(":")
    accounts = _colon_file("/etc/passwd")
    groups = _colon_file("/etc/group")
    account = _find_user(name, accounts)
    gid = _find_group(group, groups) if group else account.gid
    listed = [row[2] for row in groups if len(row) >= 4 and account.name in row[3].split(",")]
    also = tuple(found for text in listed if (found := _number(text)) is not None)
    return replace(account, gid=gid, groups=also)


def _find_user(name: str, accounts: list[list[str]]) -> Account:
    for row in accounts:
        if len(row) >= 6 and name in (row[0], row[2]):
            uid, gid = _number(row[2]), _number(row[3])
            if uid is not None and gid is not None:
                return Account(uid, gid, (), row[5] or "/", row[0])
    number = _number(name)
    if name == "root":
        return Account(0, 0, (), "/root", "root")
    if number is None:
        raise UnknownUser(f"the sandbox has no user {name!r}")
    return Account(number, 0, (), "/", name)


def _find_group(group: str, groups: list[list[str]]) -> int:
    for row in groups:
        if len(row) >= 3 and group in (row[0], row[2]) and (gid := _number(row[2])) is not None:
            return gid
    number = _number(group)
    if number is None:
        raise UnknownUser(f"the sandbox has no group {group!r}")
    return number


def _colon_file(path: str) -> list[list[str]]:
    """The rows of an account file. The agent may have replaced it by a pipe, a device, or an
    endless or invalid file: none of these does harm.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        text = os.read(descriptor, _MAX_ACCOUNT_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [line.split(":") for line in text.split("\n") if line]


def _number(text: str) -> int | None:
    """A user or group number. None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32 - 1:
        return int(text)
    return None


def run_command(
    request: dict[str, Any],
    stdio: list[int],
    end: int,
    netns: int | None,
    limits: rlimits.RLimits,
) -> None:
    """Run a command as its runner, and write its outcome to `end`.

    The runner only waits. Init does the killing, since no process in the sandbox can stop or
    kill init.
    """
    try:
        account = find_account(str(request["user"]))
        if request["single_user"] and account.uid:
            raise UnknownUser(
                f"this sandbox has only the user root; {account.name!r} needs Plimsoll as root"
            )
    except UnknownUser as error:
        os.write(end, wire.encode_reply({"error": str(error)}))
        return
    syscalls.become_subreaper()
    for descriptor in stdio:
        # Reopening a pipe by name (/dev/stdout) checks its owner.
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and not request["single_user"]:
            os.fchown(descriptor, account.uid, account.gid)
    try:
        child = os.fork()
    except BlockingIOError:
        os.write(end, wire.encode_reply(process_limit_outcome(stdio[2])))
        return
    if child == 0:
        os.close(end)
        _exec_command(request, stdio, netns, account, limits)
    for descriptor in stdio:
        os.close(descriptor)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            outcome = {"exit": code} if code >= 0 else {"signal": -code}
            os.write(end, wire.encode_reply(outcome))
            return


def process_limit_outcome(stderr: int) -> dict[str, Any]:
    """The outcome of a command that cannot be forked. Writes the reason to its stderr."""
    with contextlib.suppress(OSError):
        os.write(stderr, b"plimsoll: the process limit of the sandbox is reached\n")
    return {"exit": 126}


def kill_tree(runner: int, deadline: float) -> set[int] | None:
    """Kill a runner and its descendants. Returns their pids, or None after the deadline.

    The runner is stopped first: a stopped subreaper still adopts, and its dead descendants stay
    zombies. When two scans in a row find the same processes, all of them dead, none can be alive:
    a process that forked and exited would have left one more zombie. The scans start once the
    runner is stopped, since it may be in the middle of a fork when the signal is sent.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(runner, signal.SIGSTOP)
    while _state(runner) not in _STOPPED_STATES:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.0002)
    before: dict[int, bool] | None = None
    while (below := _descendants(runner)) != before or any(below.values()):
        for pid, alive in below.items():
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return None
        before = below
    with contextlib.suppress(ProcessLookupError):
        os.kill(runner, signal.SIGKILL)
    return {runner, *below}


def _state(pid: int) -> bytes:
    """The state letter of a process. X if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b"X"


def _descendants(ancestor: int) -> dict[int, bool]:
    """The descendants of a process, and whether any thread of each is alive."""
    parents: dict[int, tuple[int, bool]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{entry}/stat", "rb") as f:
                # The name in brackets may contain anything; the fields after it are fixed.
                fields = f.read().rpartition(b")")[2].split()
                dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
                parents[int(entry)] = (int(fields[1]), not dead)
    found: dict[int, bool] = {}
    generation = {ancestor}
    while generation:
        children = {
            pid: x[1] for pid, x in parents.items() if x[0] in generation and pid not in found
        }
        found |= children
        generation = set(children)
    return found


def _exec_command(
    request: dict[str, Any],
    stdio: list[int],
    netns: int | None,
    account: Account,
    limits: rlimits.RLimits,
) -> NoReturn:
    """Replace this process by the command. Failures exit with 126 or 127, as in a shell."""
    code = 126
    try:
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        for number in _IGNORED_SIGNALS:  # an ignored signal stays ignored after exec
            signal.signal(number, signal.SIG_DFL)
        # Out of memory, the kernel kills commands before init.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        if netns is not None:
            syscalls.setns(netns, syscalls.CLONE_NEWNET)
        rlimits.apply(limits)
        _drop_privileges(account, bool(request["single_user"]))
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
        _report_error(error, request)
    except OSError as error:
        code = 126
        _report_error(error, request)
    except Exception as error:  # noqa: BLE001 - reported on stderr, since exec failed
        wire.report_crash("plimsoll", error)
    finally:
        os._exit(code)


def _report_error(error: OSError, request: dict[str, Any]) -> None:
    name = error.filename
    subject = name if isinstance(name, str) else request["argv"][0]
    with contextlib.suppress(OSError):
        os.write(2, f"plimsoll: {subject}: {error.strerror}\n".encode("utf-8", "replace"))


def _drop_privileges(account: Account, single_user: bool) -> None:
    if not single_user:
        os.setgroups(account.groups)
    if account.gid or not single_user:
        os.setgid(account.gid)
    syscalls.drop_capabilities(KEPT_CAPABILITIES)
    if account.uid:
        os.setuid(account.uid)
    syscalls.forbid_new_privileges()
