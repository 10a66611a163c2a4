"""The groups of system calls that local sandboxes deny and a task may ask for by name."""

from typing import Literal, get_args

__all__ = ["SYSTEM_CALLS", "SystemCalls"]

SystemCalls = Literal[
    "bpf", "io-uring", "keyrings", "perf", "user-namespaces", "userfaultfd", "vsock"
]
"""`[metadata] system_calls` of a task and `[local] allow_system_calls` of the config use these."""

SYSTEM_CALLS: tuple[str, ...] = get_args(SystemCalls)
