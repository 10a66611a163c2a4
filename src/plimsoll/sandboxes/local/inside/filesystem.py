"""The file system of a sandbox, set up by init before any command runs."""

import errno
import os
from typing import Any

from plimsoll.sandboxes.local.inside import syscalls
from plimsoll.sandboxes.local.inside.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
)

__all__ = ["SetUpFailed", "enter_root"]

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
# As root without a user namespace these would change or reveal the host.
_PROC_READ_ONLY = ("bus", "fs", "irq", "sysrq-trigger")
# Init has the uid of root in the sandbox, which therefore owns init's files in /proc, and the
# sysctls of its namespaces (kernel.pid_max).
_PROC_INIT = ("1", "sys")
_PROC_HIDDEN = ("acpi", "asound", "kcore", "keys", "latency_stats", "sched_debug", "scsi",
                "timer_list", "timer_stats")  # fmt: skip


class SetUpFailed(Exception):
    """A step of the start of a sandbox failed. `step` describes it for messages."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror}")
        self.step = step
        self.number = error.errno


def enter_root(spec: dict[str, Any]) -> int | None:
    """Mount everything in the spec and make it the root of this process.

    Returns a descriptor of the tmpfs of the upper layers, if they are in memory.

    Mounts below the root are prepared aside, and moved in once the sandbox's root is the root of
    this process: links of the image then lead nowhere but into the sandbox.
    """
    os.chdir(spec["home"])
    mounts, memory = str(spec["mounts"]), None
    _step("mount a tmpfs", _mount_points, mounts)
    root, aside = f"{mounts}/root", f"{mounts}/aside"
    if mb := spec["upper_mb"]:
        prefix = "user" if spec["userns"] else "trusted"
        memory = _step("keep files in memory", _mount_memory, spec["folder"], mb, prefix)
    for overlay in spec["overlays"]:
        _step("make the upper layer", _make_upper, overlay)
    first, *others = spec["overlays"]
    _step("mount the overlay", _mount_overlay, first, root, spec["overlay_options"])
    trees: list[tuple[int, str, bool]] = []
    for overlay in others:
        point = f"{aside}/{overlay['name']}"
        _step("mount the overlay", os.mkdir, point)
        _step("mount the overlay", _mount_overlay, overlay, point, spec["overlay_options"])
        trees.append((syscalls.open_tree(point), overlay["target"], True))
    _step("mount /dev", _mount_devices, f"{aside}/dev", int(spec["shm_mb"]))
    trees.append((syscalls.open_tree(f"{aside}/dev"), "/dev", True))
    # In a user namespace /proc can be mounted only while another one is visible.
    _step("mount /proc", _mount_proc, f"{aside}/proc", f"{aside}/dev/null", bool(spec["userns"]))
    trees.append((syscalls.open_tree(f"{aside}/proc"), "/proc", True))
    binds: list[tuple[int, str, bool]] = []
    for bind in spec["binds"]:
        binds.append(_step(f"mount {bind['source']}", _clone_mount, bind["source"], bind["target"]))
    optional = {bind["target"] for bind in spec["binds"] if bind["unless_there"]}
    _step("change the root", _change_root, root)
    for tree in trees:
        _step(f"mount {tree[1]}", _attach, *tree)
    for tree in binds:
        if tree[1] in optional and _has_entries(tree[1]):
            os.close(tree[0])
            continue
        sealed = _step(f"mount {tree[1]}", _seal, tree[0])
        _step(f"mount {tree[1]}", _attach, *tree)
        if not sealed:
            _step(f"mount {tree[1]}", _remount_sealed, tree[1])
    _step(f"make {spec['workdir']}", os.makedirs, spec["workdir"], 0o755, True)
    return memory


def _step(name: str, action: Any, *arguments: Any) -> Any:  # noqa: ANN401
    try:
        return action(*arguments)
    except OSError as error:
        raise SetUpFailed(name, error) from None


def _mount_points(point: str) -> None:
    """Create the mount points in a tmpfs, where they cost no inodes of the disk."""
    mount("tmpfs", point, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k,nr_inodes=4096")
    for name in ("root", "aside", "aside/dev", "aside/proc"):
        os.mkdir(f"{point}/{name}")


def _mount_memory(folder: str, mb: int, prefix: str) -> int:
    """Mount a tmpfs over the sandbox's folder, with one inode for each page."""
    data = f"mode=755,size={mb}m,nr_inodes={mb * 256}"
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, data)
    # Without extended attributes an overlay mounts, but mishandles removed folders.
    name = f"{prefix}.overlay.plimsoll"
    os.setxattr(folder, name, b"y")
    os.removexattr(folder, name)
    return os.open(folder, os.O_PATH | os.O_CLOEXEC)


def _make_upper(overlay: dict[str, Any]) -> None:
    """Create the upper folder, from which the root of an overlay takes its mode and owner."""
    upper, work = str(overlay["upper"]), str(overlay["work"])
    os.makedirs(upper)
    os.chmod(upper, overlay["mode"])
    if overlay["owner"] is not None:
        os.chown(upper, *overlay["owner"])
    os.mkdir(work)


def _mount_overlay(overlay: dict[str, Any], point: str, options: str) -> None:
    lower = ":".join(overlay["lower"])
    data = f"lowerdir={lower},upperdir={overlay['upper']},workdir={overlay['work']}{options}"
    mount("overlay", point, "overlay", MS_NODEV, data)


def _clone_mount(source: str, target: str) -> tuple[int, str, bool]:
    return syscalls.open_tree(source), target, os.path.isdir(source)


def _has_entries(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _attach(tree: int, target: str, folder: bool) -> None:
    """Attach mounts in the sandbox's root, creating their target."""
    if folder:
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        if os.path.islink(target):  # a dangling link, at whose target the mount would be made
            os.unlink(target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.move_mount(tree, target)
    os.close(tree)


def _mount_proc(proc: str, null: str, userns: bool) -> None:
    mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in (*_PROC_INIT, *(() if userns else _PROC_READ_ONLY)):
        path = f"{proc}/{name}"
        if os.path.exists(path):
            mount(path, path, None, MS_BIND | MS_REC)
            mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
                  | MS_NOEXEC)  # fmt: skip
    if userns:
        return
    for name in _PROC_HIDDEN:
        path = f"{proc}/{name}"
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_RDONLY, "size=0")
        elif os.path.exists(path):
            mount(null, path, None, MS_BIND)


def _mount_devices(dev: str, shm_mb: int) -> None:
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in _DEVICES:
        _make_device(f"/dev/{name}", f"{dev}/{name}")
    for name, to in _DEVICE_LINKS:
        os.symlink(to, f"{dev}/{name}")
    os.mkdir(f"{dev}/shm")
    mount("tmpfs", f"{dev}/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={shm_mb}m")
    os.mkdir(f"{dev}/pts")
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC,
          "newinstance,ptmxmode=0666,mode=620")  # fmt: skip


def _make_device(host: str, path: str) -> None:
    """Create a device node of the sandbox's own, since root inside may change its mode.

    Without root, bind the host's node, which no user inside can change.
    """
    info = os.stat(host)
    try:
        os.mknod(path, info.st_mode, info.st_rdev)
        os.chmod(path, 0o666)
    except PermissionError:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        mount(host, path, None, MS_BIND)


def _seal(tree: int) -> bool:
    """Make a bind mount and its submounts read-only before they are visible.

    False if the kernel cannot do that yet, and each mount has to be remounted.
    """
    try:
        syscalls.seal_tree(tree)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return False
    return True


def _remount_sealed(target: str) -> None:
    for point in _mounts_at(os.path.realpath(target)):
        held = os.statvfs(point).f_flag
        noexec = MS_NOEXEC if held & os.ST_NOEXEC else 0
        flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
        mount(None, point, None, flags | noexec)


def _mounts_at(target: str) -> list[str]:
    """The mount points at a path and below it."""
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = [_unescaped(line.split(b" ")[4]) for line in file]
    return [point for point in mounts if point == target or point.startswith(f"{target}/")]


def _unescaped(point: bytes) -> str:
    """Decode a path of mountinfo, in which blanks and backslashes are octal escapes."""
    first, *others = point.split(b"\\")
    return os.fsdecode(first + b"".join(bytes([int(x[:3], 8)]) + x[3:] for x in others))


def _change_root(root: str) -> None:
    os.chdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.unmount_detached(".")
    os.chdir("/")
