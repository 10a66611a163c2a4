"""The system call filter of a sandbox: a deny list, compiled to BPF and installed by init.

Every process of the sandbox inherits it. Root in the sandbox has few capabilities, but two kinds
of calls need none: calls for objects without a namespace (keyrings, vsock), and calls into parts
of the kernel that a sandbox does not need. A new user namespace would give all capabilities back.
The kernel mounts control groups only for the owner of a cgroup namespace, so denying new cgroup
namespaces also denies the mount, whose arguments a filter cannot read.

Init has the uid of root in the sandbox. The kernel would let that root change init's limits and
priority, which every later command inherits, so calls that name pid 1 are denied.

A call costs some tens of nanoseconds more (`make bench-filter`): on Linux 5.11 and newer the
kernel works out once, from the number alone, which calls the filter always allows.
"""

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from plimsoll.sandboxes.local.inside import syscalls

__all__ = ["GROUPS", "MACHINES", "compile_filter", "install"]

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

_X32_CALLS = 0x40000000
"""Numbers from here on are x32 variants of x86-64 calls."""

_NEW_USER = syscalls.CLONE_NEWUSER
_NEW_CGROUP = 0x02000000
_AF_VSOCK = 40
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 4
"""Keeps speculation enabled; older kernels otherwise slow down every filtered process."""


@dataclass(frozen=True)
class _Machine:
    """An architecture: its name in audit records, and the numbers of its calls."""

    arch: int
    numbers: Mapping[str, int]


_NEW_NUMBERS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435,
}  # fmt: skip
"""Calls from 424 on have the same number everywhere."""

_X86_64 = {
    "add_key": 248, "bpf": 321, "clone": 56, "delete_module": 176, "finit_module": 313,
    "init_module": 175, "ioprio_set": 251, "kexec_file_load": 320, "kexec_load": 246,
    "keyctl": 250, "open_by_handle_at": 304, "perf_event_open": 298, "prlimit64": 302,
    "request_key": 249, "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142,
    "sched_setscheduler": 144, "seccomp": 317, "setpriority": 141, "socket": 41, "syslog": 103,
    "unshare": 272, "userfaultfd": 323,
}  # fmt: skip
_GENERIC = {
    "add_key": 217, "bpf": 280, "clone": 220, "delete_module": 106, "finit_module": 273,
    "init_module": 105, "ioprio_set": 30, "kexec_file_load": 294, "kexec_load": 104,
    "keyctl": 219, "open_by_handle_at": 265, "perf_event_open": 241, "prlimit64": 261,
    "request_key": 218, "sched_setaffinity": 122, "sched_setattr": 274, "sched_setparam": 118,
    "sched_setscheduler": 119, "seccomp": 277, "setpriority": 140, "socket": 198,
    "syslog": 116, "unshare": 97, "userfaultfd": 282,
}  # fmt: skip

MACHINES = {
    "x86_64": _Machine(0xC000003E, {**_X86_64, **_NEW_NUMBERS}),
    "aarch64": _Machine(0xC00000B7, {**_GENERIC, **_NEW_NUMBERS}),
}


@dataclass(frozen=True)
class _Check:
    """A test of the low 32 bits of one argument."""

    argument: int
    test: int
    value: int


@dataclass(frozen=True)
class _Rule:
    """A denied call: always, or if any of the checks holds."""

    call: str
    error: int = errno.EPERM
    checks: tuple[_Check, ...] = ()


def _flags(call: str, flags: int) -> _Rule:
    return _Rule(call, checks=(_Check(0, _ANY_BIT, flags),))


def _targets_init(call: str) -> _Rule:
    return _Rule(call, checks=(_Check(0, _EQUAL, 1),))


GROUPS: Mapping[str, tuple[_Rule, ...]] = {
    "bpf": (_Rule("bpf"),),
    "io-uring": (_Rule("io_uring_setup"), _Rule("io_uring_enter"), _Rule("io_uring_register")),
    "keyrings": (_Rule("add_key"), _Rule("request_key"), _Rule("keyctl")),
    "perf": (_Rule("perf_event_open"),),
    "user-namespaces": (_flags("unshare", _NEW_USER), _flags("clone", _NEW_USER)),
    "userfaultfd": (_Rule("userfaultfd"),),
    "vsock": (_Rule("socket", errno.EAFNOSUPPORT, (_Check(0, _EQUAL, _AF_VSOCK),)),),
}
"""Denied unless the task requests them and the config allows them."""

_ALWAYS = (
    _flags("unshare", _NEW_CGROUP),
    _flags("clone", _NEW_CGROUP),
    # Its flags are behind a pointer. The C library falls back to `clone`.
    _Rule("clone3", errno.ENOSYS),
    *map(_Rule, ("init_module", "finit_module", "delete_module", "kexec_load")),
    *map(_Rule, ("kexec_file_load", "open_by_handle_at", "syslog")),
    *map(_targets_init, ("prlimit64", "sched_setaffinity", "sched_setattr")),
    *map(_targets_init, ("sched_setparam", "sched_setscheduler")),
    # By process or process group 1, or for all processes of a user.
    _Rule("setpriority", checks=(_Check(1, _EQUAL, 1), _Check(0, _EQUAL, 2))),
    _Rule("ioprio_set", checks=(_Check(1, _EQUAL, 1), _Check(0, _EQUAL, 3))),
)


@functools.lru_cache(maxsize=64)
def compile_filter(allowed: frozenset[str], machine: str) -> bytes:
    """The BPF program for a machine, without rules for the allowed groups."""
    found = MACHINES.get(machine)
    if found is None:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    rules = [*_ALWAYS]
    for name, group in GROUPS.items():
        if name not in allowed:
            rules += group
    program = [
        # Calls of another architecture (i386 on x86-64) have other numbers.
        *_instructions((_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, found.arch), _deny(errno.ENOSYS)),
        *_instructions((_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _X32_CALLS)),
        *_instructions(_deny(errno.ENOSYS)),
    ]
    for rule in _merged(rules):
        program += _block(found.numbers[rule.call], rule)
    program += _instructions((_RETURN, 0, 0, _ALLOW))
    return b"".join(program)


def _merged(rules: Collection[_Rule]) -> list[_Rule]:
    """One rule for each call: the checks of its rules together."""
    merged: dict[str, _Rule] = {}
    for rule in rules:
        before = merged.get(rule.call)
        checks = rule.checks if before is None else (*before.checks, *rule.checks)
        merged[rule.call] = _Rule(rule.call, rule.error, checks)
    return list(merged.values())


def _block(number: int, rule: _Rule) -> list[bytes]:
    """The instructions for one call. Any other call skips them."""
    body = _instructions(_deny(rule.error))
    if rule.checks:
        body = [*_instructions((_RETURN, 0, 0, _ALLOW)), *body]
    for check in reversed(rule.checks):
        to_denial = len(body) - 1
        load = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * check.argument)
        body = [*_instructions(load, (check.test, to_denial, 0, check.value)), *body]
    return [*_instructions((_EQUAL, 0, len(body), number)), *body]


def _deny(error: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _ERRNO | error


def _instructions(*instructions: tuple[int, int, int, int]) -> list[bytes]:
    return [struct.pack("=HBBI", *instruction) for instruction in instructions]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Filter the calls of this process and of every process that it starts from now on.

    With CAP_SYS_ADMIN in its user namespace a process can install a filter and still gain
    privileges by a set-user-ID program. Commands lose that ability when they start.
    """
    number = MACHINES[os.uname().machine].numbers["seccomp"]
    given = _Program(len(program) // 8, program)
    try:
        syscalls.call(number, _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.addressof(given))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.call(number, _SET_MODE_FILTER, 0, ctypes.addressof(given))  # before Linux 4.17
