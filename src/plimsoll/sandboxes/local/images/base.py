"""The root file systems that images start from.

A *root* is a folder with a whole file system, named in the config. Without one, the host's own
system is used through an allow-list: its programs and libraries, the few files of /etc that
programs need, and empty folders for the rest. Sandboxes see no homes, keys, sockets, /run, logs or
anything else of the host.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.core.ids import short_id
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.local.host.resources import staging_path
from plimsoll.sandboxes.local.images.private_files import find_private_files, make_whiteout_layers
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["HOST_PATHS", "Base", "host_base", "root_base"]

HOST_PATHS = ("/opt",)
"""Folders with programs, besides the system's own."""

_SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""The host's programs and libraries. Links stay links."""

_PACKAGE_PATHS = ("/var/lib/dpkg",)
"""Allows a Dockerfile to install packages on top of the host's system."""

_ETC = (
    "alternatives", "apt/sources.list", "apt/sources.list.d", "apt/trusted.gpg.d",
    "apt/apt.conf.d", "apt/preferences.d", "bash.bashrc", "bindresvport.blacklist",
    "ca-certificates", "ca-certificates.conf", "debconf.conf", "debian_version", "deluser.conf",
    "adduser.conf", "default/useradd", "dpkg", "ethertypes", "environment", "fonts", "gai.conf",
    "host.conf", "inputrc", "issue", "java-*-openjdk", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "libaudit.conf", "locale.alias", "locale.gen", "localtime", "login.defs",
    "lsb-release", "magic", "mime.types", "nsswitch.conf", "os-release", "pam.conf", "pam.d",
    "perl", "pki/ca-trust", "pki/tls/certs", "profile", "profile.d", "protocols", "python3*",
    "redhat-release", "resolv.conf", "rpc", "security", "selinux", "services", "shells", "skel",
    "ssl/certs", "ssl/openssl.cnf", "system-release", "terminfo", "timezone", "vim", "xattr.conf",
)  # fmt: skip

_FOLDERS = (
    ("etc", 0o755), ("home", 0o755), ("media", 0o755), ("mnt", 0o755), ("root", 0o700),
    ("run", 0o755), ("run/lock", 0o1777), ("srv", 0o755), ("tmp", 0o1777), ("var", 0o755),
    ("var/cache", 0o755), ("var/cache/apt", 0o755), ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o755), ("var/lib", 0o755), ("var/lib/apt", 0o755),
    ("var/lib/apt/lists", 0o755), ("var/lib/apt/lists/partial", 0o755), ("var/log", 0o755),
    ("var/mail", 0o755), ("var/spool", 0o755), ("var/tmp", 0o1777), ("proc", 0o755),
    ("dev", 0o755), ("sys", 0o755),
)  # fmt: skip

_FIRST_PERSONAL_UID = 1000
"""Accounts from this number on belong to people. Sandboxes do not get them."""

_PACKAGE_STATE = ("etc", "usr", "usr/bin", "usr/lib", "etc/passwd", "etc/group",
                    "var/lib/dpkg/status", "var/lib/rpm", "lib/apk/db/installed")  # fmt: skip
"""Paths of a system that change with its packages."""

_NOBODY = 65534
_DEEP_SHIMS = 5
_MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Base:
    """The root file system of an image: for each overlay target its folders, topmost first.

    Folders in the backend's home are relative to it.
    """

    key: str
    lowers: Mapping[str, tuple[str, ...]]
    binds: tuple[tuple[str, str], ...] = ()
    """Files of the host that its sandboxes see read-only: source and target."""


def root_base(home: Home, path: Path) -> Base:
    """A root file system from the config, with the host's resolv.conf."""
    if not (path / "usr").is_dir() and not (path / "bin").is_dir():
        raise SandboxUnavailable(
            f"{path} is not a root file system: it has neither usr nor bin; see [local] roots"
        )
    parts = [f"root {path}", *_states(path / name for name in ("", *_PACKAGE_STATE))]
    resolv = home.path / "resolv.conf"
    with contextlib.suppress(OSError):
        shutil.copyfile("/etc/resolv.conf", resolv)
    binds = ((str(resolv), "/etc/resolv.conf"),) if resolv.exists() else ()
    return Base(_hash(parts), {"/": (str(path),)}, binds)


def host_base(home: Home, host_paths: Iterable[str], single_user: bool) -> Base:
    """The host's own system through the allow-list."""
    shared: dict[str, tuple[str, ...]] = {}
    links: dict[str, str] = {}
    empty: list[str] = []
    for name in (*_SYSTEM_PATHS, *host_paths, *(() if single_user else _PACKAGE_PATHS)):
        path = Path(name)
        if path.is_symlink():
            links[name] = str(path.readlink())
        elif path.is_dir():
            # An overlay costs each sandbox nine inodes, which an empty folder is not worth.
            if _has_entries(path):
                shared[name] = (name,)
            else:
                empty.append(name)
    key = _host_key((*shared, *(f"empty {name}" for name in empty)), links, single_user)
    folder = home.bases / key
    if not folder.is_dir():
        _make_skeleton(home, folder, shared, empty, links, single_user)
    if single_user:
        shared = {
            target: (f"bases/{key}/shims/{target.lstrip('/')}", *lower)
            for target, lower in shared.items()
        }
    for target, whiteouts in _whiteouts(home, shared, single_user).items():
        shared[target] = (whiteouts, *shared[target])
    return Base(key, {"/": (f"bases/{key}/root",), **shared})


def _whiteouts(home: Home, shared: Iterable[str], single_user: bool) -> Mapping[str, str]:
    """The whiteout layers over the private files of the host.

    They are not part of the base's key: images do not depend on them.
    """
    targets = [name for name in shared if name not in _PACKAGE_PATHS]
    try:
        private = find_private_files(home, targets)
        return make_whiteout_layers(home, private, targets, single_user)
    except OSError as error:
        raise SandboxUnavailable(
            f"the local backend cannot hide private files of the host by whiteouts in {home.path}: "
            f"{error.strerror}; set PLIMSOLL_HOME to a folder on ext4, xfs, btrfs or tmpfs"
        ) from None


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _has_entries(folder: Path) -> bool:
    try:
        return any(True for _ in folder.iterdir())
    except OSError:
        return True


def _host_key(shared: Iterable[str], links: Mapping[str, str], single_user: bool) -> str:
    """A key that changes with the host's packages and with the copied files."""
    parts = [f"host 3 {single_user} {os.geteuid()}", *shared, *map(str, links.items())]
    package_state = (Path("/", name) for name in _PACKAGE_STATE)
    return _hash([*parts, *_states((*_etc_files(), *package_state))])


def _states(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with contextlib.suppress(OSError):
            info = path.stat()
            yield f"{path} {info.st_ino} {info.st_size} {info.st_mtime_ns}"


def _etc_files() -> list[Path]:
    return sorted(path for pattern in _ETC for path in Path("/etc").glob(pattern))


def _make_skeleton(
    home: Home,
    folder: Path,
    shared: Mapping[str, object],
    empty: Iterable[str],
    links: Mapping[str, str],
    single_user: bool,
) -> None:
    """Create the skeleton atomically: under another name, then by a rename."""
    staging = staging_path(home.bases / short_id(), this_process())
    try:
        _fill_skeleton(staging, shared, empty, links, single_user)
        staging.rename(folder)
    except OSError as error:
        remove_folder(staging)
        if not folder.is_dir():  # otherwise another process created it
            raise SandboxUnavailable(
                f"the local backend cannot keep its files in {home.path}: {error.strerror}; "
                "free some space, or set PLIMSOLL_HOME to another folder"
            ) from None


def _fill_skeleton(
    staging: Path,
    shared: Mapping[str, object],
    empty: Iterable[str],
    links: Mapping[str, str],
    single_user: bool,
) -> None:
    root = staging / "root"
    root.mkdir(parents=True)
    staging.chmod(0o755)
    root.chmod(0o755)
    for name, mode in _FOLDERS:
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    for name in (*shared, *empty):
        _make_public(root, name.lstrip("/"))
    for name, to in links.items():
        (root / name.lstrip("/")).symlink_to(to)
    (root / "var/run").symlink_to("/run")
    for path in _etc_files():
        _make_public(root, str(path.parent).lstrip("/"))
        _copy_public(path, root / str(path).lstrip("/"))
    _write_accounts(root)
    _write_lines(root / "etc/hosts", ["127.0.0.1 localhost", "::1 localhost"])
    if single_user:
        for target in shared:
            _make_shims(Path(target), staging / "shims" / target.lstrip("/"))


def _make_public(root: Path, name: str) -> None:
    """Create a folder and its parents, readable by everyone whatever the umask."""
    folder = root
    for part in Path(name).parts:
        folder = folder / part
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o755)


def _copy_public(source: Path, target: Path) -> None:
    """Copy files that everyone may read. Private files are skipped."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        info = source.lstat()
        if stat.S_ISLNK(info.st_mode):
            if source.name in ("resolv.conf", "localtime") and source.exists():
                shutil.copyfile(source, target)
                target.chmod(0o644)
            else:
                target.symlink_to(source.readlink())
        elif stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
            target.mkdir(exist_ok=True)
            target.chmod(0o755)
            for entry in source.iterdir():
                _copy_public(entry, target / entry.name)
        elif (
            stat.S_ISREG(info.st_mode) and info.st_mode & 0o004 and info.st_size <= _MAX_FILE_BYTES
        ):
            shutil.copy2(source, target)


def _write_accounts(root: Path) -> None:
    """Write the system accounts, without personal accounts and passwords."""
    users = _system_accounts("passwd") or ["root:x:0:0:root:/root:/bin/sh"]
    groups = _system_accounts("group") or ["root:x:0:"]
    _write_lines(root / "etc/passwd", users)
    _write_lines(root / "etc/group", groups)
    names = [[line.split(":")[0] for line in lines] for lines in (users, groups)]
    _write_lines(root / "etc/shadow", [f"{name}:*:19000:0:99999:7:::" for name in names[0]], 0o640)
    _write_lines(root / "etc/gshadow", [f"{name}:*::" for name in names[1]], 0o640)


def _system_accounts(file: str) -> list[str]:
    accounts: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/etc", file).read_text(errors="replace").splitlines():
            fields = line.split(":")
            number = fields[2] if len(fields) > 3 else ""
            if number.isdigit() and (int(number) < _FIRST_PERSONAL_UID or int(number) == _NOBODY):
                fields[1] = "x"
                if file == "group":
                    fields[3:] = [""]
                accounts.append(":".join(fields))
    return accounts


def _write_lines(path: Path, lines: list[str], mode: int = 0o644) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)


def _make_shims(target: Path, shim: Path, depth: int = 3) -> None:
    """Create empty folders of this user to stack over the host's.

    Without root, the host's folders belong to nobody in the sandbox, and nothing can be added to
    them. An overlay takes a folder's owner from its topmost layer.
    """
    shim.mkdir(parents=True, exist_ok=True)
    shim.chmod(0o755)
    if depth:
        with contextlib.suppress(OSError):
            for entry in os.scandir(target):
                if entry.is_dir(follow_symlinks=False):
                    # Deeper where software is installed to: …/lib/python3.x/dist-packages.
                    below = _DEEP_SHIMS if entry.path == "/usr/local" else depth - 1
                    _make_shims(Path(entry.path), shim / entry.name, below)
