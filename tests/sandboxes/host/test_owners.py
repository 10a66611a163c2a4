"""Owners: this process, a dead one, and owners of another boot, host or namespace."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import msgspec

from parts import need
from plimsoll.core.ids import Labels, Owner
from plimsoll.sandboxes.docker.labels import from_docker, to_docker
from plimsoll.sandboxes.host.owners import (
    host_name,
    is_alive,
    is_here,
    this_process,
)
from plimsoll.sandboxes.local.host.resources import SandboxMeta

SAY = """
import sys
from plimsoll.sandboxes.host.owners import this_process
me = this_process()
print(me.host, me.pid, me.started, flush=True)
sys.stdin.read()
"""

JUDGE = """
import sys
from plimsoll.core.ids import Owner
from plimsoll.sandboxes.host.owners import is_alive, is_here
host, pid, started = sys.argv[1:]
owner = Owner(host, int(pid), started)
print(is_here(owner), is_alive(owner))
"""


def _other() -> tuple[subprocess.Popen[str], Owner]:
    process = subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    host, pid, started = process.stdout.readline().split()
    return process, Owner(host, int(pid), started)


def test_this_process_is_alive():
    assert is_alive(this_process())
    assert is_here(this_process())


def test_another_process_is_alive_until_it_ends_and_a_zombie_is_dead():
    process, owner = _other()
    with process:
        assert owner.host == this_process().host
        assert is_alive(owner)
        process.kill()
        deadline = time.monotonic() + 30
        while is_alive(owner):  # it is a zombie until someone waits for it
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not is_alive(owner)


def test_a_later_process_with_the_same_pid_is_not_the_owner():
    assert not is_alive(replace(this_process(), started=f"{this_process().started}0"))


def test_this_host_before_a_reboot_is_dead():
    _, _, ticks = this_process().started.partition(":")
    earlier = "0f4a2d1e-0000-4000-8000-000000000000"
    assert not is_alive(replace(this_process(), started=f"{earlier}:{ticks}"))


def test_owners_on_another_host_of_any_name_count_as_alive():
    same_name = replace(this_process(), host=f"{host_name(this_process())}~00000000", pid=2**22 - 1)
    for other in (same_name, Owner("elsewhere~12345678", 2**22 - 1, "x:1")):
        assert not is_here(other)
        assert is_alive(other)


def test_owners_without_a_host_digest_are_recognized():
    plain = replace(this_process(), host=os.uname().nodename)
    assert is_alive(plain)
    assert not is_alive(replace(plain, pid=2**22 - 1))
    written = msgspec.json.encode(SandboxMeta(Labels("r", "t", plain, 1.0), {}))
    assert msgspec.json.decode(written, type=SandboxMeta).labels.owner == plain


def test_an_owner_survives_container_labels():
    labels = Labels("run", "task.1", this_process(), float(round(time.time())))
    assert from_docker(to_docker(labels)) == labels


def test_pids_of_another_namespace_are_not_trusted():
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    works = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    need("root", None if works.returncode == 0 else "name spaces cannot be made")
    me = this_process()
    command = [sys.executable, "-c", JUDGE, me.host, str(me.pid), me.started]

    def judged(*before: str) -> str:
        return subprocess.run(
            [*before, *command], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert judged() == "True True"
    assert judged(*unshare) == "False True"
