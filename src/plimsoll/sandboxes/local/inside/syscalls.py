"""System calls that the `os` module of Python 3.11 lacks. Errors are `OSError`."""

import ctypes
import os

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "become_subreaper",
    "call",
    "die_with_parent",
    "drop_capabilities",
    "forbid_new_privileges",
    "hide_memory",
    "join_session_keyring",
    "limit_capabilities",
    "mount",
    "move_mount",
    "open_tree",
    "pivot_root",
    "seal_tree",
    "setns",
    "unmount_detached",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_EMPTY_PATH = 4
_MNT_DETACH = 2
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_MOUNT_ATTR_NODEV = 4
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAP_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 40

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    arguments = [None if x is None else os.fsencode(x) for x in (source, target, kind)]
    options = os.fsencode(data) if data else None
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options), target)


def unmount_detached(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), target)


def pivot_root(new_root: str, put_old: str) -> None:
    # Not every glibc exports a wrapper; the number depends on the machine.
    number = {"x86_64": 155}.get(os.uname().machine, 41)
    _check(_libc.syscall(number, os.fsencode(new_root), os.fsencode(put_old)), "pivot_root")


def open_tree(path: str) -> int:
    """A detached copy of the mounts at a path and below it."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return call(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def move_mount(tree: int, target: str) -> None:
    """Attach the mounts of `open_tree`."""
    where = _AT_FDCWD, os.fsencode(target)
    call(_SYS_MOVE_MOUNT, tree, b"", *where, _MOVE_MOUNT_EMPTY_PATH)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def seal_tree(tree: int) -> None:
    """Make every mount of an `open_tree` read-only, without devices and set-user-ID programs.

    Raises ENOSYS before Linux 5.12.
    """
    sealed = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    attributes = _MountAttributes(sealed, 0, 0, 0)
    where = ctypes.addressof(attributes), ctypes.sizeof(attributes)
    call(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, *where)


def join_session_keyring() -> None:
    """Replace the session keyring by a new, empty one."""
    number = {"x86_64": 250}.get(os.uname().machine, 219)
    call(number, _KEYCTL_JOIN_SESSION_KEYRING, 0)


def call(number: int, *arguments: int | bytes) -> int:
    """Make a system call by number."""
    longs = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *longs))
    _check(result, f"system call {number}")
    return result


def _prctl(option: int, value: int) -> int:
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies, even if it died just before this call."""
    _check(_prctl(_PR_SET_PDEATHSIG, _SIGKILL), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Adopt orphaned descendants instead of init."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "PR_SET_CHILD_SUBREAPER")


def hide_memory() -> None:
    """Deny processes in the sandbox to trace this process or read its memory."""
    _check(_prctl(_PR_SET_DUMPABLE, 0), "PR_SET_DUMPABLE")


def forbid_new_privileges() -> None:
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "PR_SET_NO_NEW_PRIVS")


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def limit_capabilities(kept: frozenset[int]) -> None:
    """Limit the capabilities of every program that this process or a child of it executes."""
    for number in range(_LAST_CAPABILITY + 1):
        if number not in kept:
            _prctl(_PR_CAPBSET_DROP, number)  # unknown to an older kernel: nothing to drop


def drop_capabilities(kept: frozenset[int]) -> None:
    """Keep at most these capabilities from now on."""
    header = _CapHeader(_CAP_VERSION_3, 0)
    held = (_CapData * 2)()
    _check(_libc.capget(ctypes.byref(header), held), "capget")
    for word in range(2):
        mask = sum(1 << (n - 32 * word) for n in kept if n // 32 == word)
        both = held[word].permitted & mask
        held[word] = _CapData(both, both, 0)
    _check(_libc.capset(ctypes.byref(header), held), "capset")
