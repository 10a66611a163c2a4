"""Fetches of single shell commands, by tool: git, curl, pip, uv, npm, apt-get and others."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.shell.options import Arguments, is_remote, split_options
from plimsoll.tasks.shell.syntax import Command

__all__ = ["CommandFetch", "fetch_of_command", "pip_arguments"]


@dataclass(frozen=True, slots=True)
class CommandFetch:
    """The fetch of a command, as its arguments describe it."""

    tool: str
    kind: Kind
    what: tuple[str, ...] = ()
    target: str | None = None
    revision: str | None = None
    requirements: tuple[str, ...] = ()
    """Requirements files (`pip -r`)."""


# fmt: off
CURL_VALUED = (
    "-o", "--output", "-H", "--header", "-d", "--data", "-u", "--user", "-X", "--request", "-A",
    "--user-agent", "--retry", "--retry-delay", "--connect-timeout", "-m", "--max-time", "-e",
    "-b", "-c", "-w", "--write-out", "-F", "-T", "-x", "--proxy", "--cacert", "--data-raw",
    "--output-dir", "--url", "--proto", "-K", "-E", "--retry-max-time",
)
WGET_VALUED = (
    "-O", "--output-document", "-P", "--directory-prefix", "-o", "-t", "--tries", "-T", "--timeout",
    "--header", "-U", "-a", "-i", "--user", "--password", "--post-data",
)
PIP_VALUED = (
    "-r", "--requirement", "-c", "--constraint", "-t", "--target", "-i", "--index-url", "-f",
    "--extra-index-url", "--find-links", "--prefix", "--root", "--python", "-p", "--timeout",
    "--retries", "--trusted-host", "-d", "--dest", "--platform", "--python-version",
    "--only-binary", "--no-binary", "--cache-dir", "--progress-bar", "--root-user-action", "-e",
    "--editable", "--proxy", "--index-strategy", "--upgrade-strategy", "--config-settings",
    "--index", "--report",
)
UVX_VALUED = (
    "-w", "--with", "--from", "-p", "--python", "--with-requirements", "--with-editable", "-c",
    "--index-url", "--default-index", "--extra-index-url", "-f", "--find-links", "--index", "-i",
    "--constraints", "--cache-dir", "--project", "--directory", "--extra", "--group", "--env-file",
)
GIT_VALUED = ("-C", "-c", "--git-dir", "--work-tree")
CLONE_VALUED = (
    "-b", "--branch", "--depth", "-o", "--origin", "-j", "--jobs", "--reference", "-c", "--config",
    "--filter", "--shallow-since", "--separate-git-dir", "--revision", "--template",
)
NPM_VALUED = (
    "--prefix", "-C", "--registry", "-w", "--workspace", "-p", "--package", "-c", "--call",
)
PACKAGE_VALUED = ("-o", "-t", "-c", "--target-release", "-n", "--name", "-X", "--repository")
# fmt: on
PACKAGE_TOOLS = {
    "apt-get": ("install", "build-dep"),
    "apt": ("install", "build-dep"),
    "aptitude": ("install",),
    "apk": ("add",),
    "yum": ("install",),
    "dnf": ("install",),
    "microdnf": ("install",),
    "zypper": ("install", "in"),
    "conda": ("install", "create"),
    "mamba": ("install", "create"),
    "micromamba": ("install", "create"),
    "gem": ("install",),
    "bundle": ("install",),
    "composer": ("install", "require"),
    "brew": ("install",),
    "go": ("get", "install", "mod"),
    "cargo": ("fetch", "install", "add"),
    "rustup": ("install", "toolchain", "update"),
    "poetry": ("install", "add"),
    "pdm": ("install", "add"),
}
PYTHONS = re.compile(r"python(?:\d(?:\.\d+)?)?|pypy3?")
LOCAL_PATH = re.compile(r"\.{0,2}/|\.{1,2}$|\.\[|\$|file:|~")


def fetch_of_command(command: Command) -> CommandFetch | None:
    """Return the fetch of a command, unwrapped from `sudo`; None if it needs no network."""
    plain = command.unwrapped()
    env = {assignment.name: assignment.value for assignment in plain.assignments}
    if env.get("PIP_NO_INDEX") or env.get("UV_OFFLINE"):
        return None
    name, args = plain.name, plain.args
    if PYTHONS.fullmatch(name):
        name, args = _python_module(args)
    if name.startswith("pip") and re.fullmatch(r"pip\d?(\.\d+)?", name):
        name = "pip"
    if name in ("curl", "wget"):
        return _download(plain)
    if name in PACKAGE_TOOLS:
        return _packages(name, args)
    parser = PARSERS.get(name)
    return parser(args) if parser is not None else None


def _python_module(args: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    words = split_options(args, ("-m", "-c", "-W", "-X"), stop=True)
    module = words.value("-m")
    if module is None:
        return "", ()
    return module, tuple(args[list(args).index(module) + 1 :]) if module in args else ()


def _download(plain: Command) -> CommandFetch | None:
    is_curl = plain.name == "curl"
    words = split_options(plain.args, CURL_VALUED if is_curl else WGET_VALUED)
    operands = (*words.operands, *words.values("--url"))
    urls = tuple(url for url in operands if is_remote(url))
    if not urls:
        return None
    target = words.value("-o", "--output") if is_curl else words.value("-O", "--output-document")
    if target is None:
        named = not is_curl or words.has("-O", "--remote-name")
        redirect = next((r.target for r in plain.redirects if r.operator in (">", ">>")), None)
        target = _file_name(urls[0]) if named else redirect
    uv = _pipes_to_shell(plain) and any(_is_uv_installer(url) for url in urls)
    saved = None if target in ("-", "/dev/stdout", "/dev/null") else target
    return CommandFetch(plain.name, Kind.UV_TOOL if uv else Kind.URL, urls, saved)


def _file_name(url: str) -> str:
    return posixpath.basename(url.split("?")[0].split("#")[0].rstrip("/")) or "index.html"


def _pipes_to_shell(plain: Command) -> bool:
    after = plain.pipeline[plain.position + 1 :]
    return any(posixpath.basename(name) in ("sh", "bash", "sudo", "env") for name in after)


def _is_uv_installer(url: str) -> bool:
    parts = re.split(r"[/:]+", url)
    return "uv" in parts and parts[-1].endswith((".sh", "install"))


def pip_arguments(args: Sequence[str]) -> Arguments | None:
    """Return the arguments of `pip install` and similar; None if nothing is fetched."""
    action = split_options(args, PIP_VALUED, stop=True).operands
    if not action or action[0] not in ("install", "download", "wheel", "sync"):
        return None
    words = split_options(action[1:], PIP_VALUED)
    return None if words.has("--no-index", "--offline", "--no-download") else words


def _pip(args: Sequence[str]) -> CommandFetch | None:
    words = pip_arguments(args)
    return None if words is None else _pip_fetch("pip", words)


def _pip_fetch(tool: str, words: Arguments) -> CommandFetch | None:
    files = words.values("-r", "--requirement")
    packages = tuple(word for word in words.operands if not LOCAL_PATH.match(word))
    wheels_only = all(word.endswith(".whl") for word in words.operands) and words.operands
    editable = words.has("-e", "--editable")
    if not (packages or files) and words.has("--no-deps", "--no-build-isolation"):
        return None
    if not (packages or files or words.operands or editable) or (wheels_only and not files):
        return None
    return CommandFetch(tool, Kind.WHEELS, packages, requirements=files)


def _uv(args: Sequence[str]) -> CommandFetch | None:
    action = split_options(args, UVX_VALUED, stop=True)
    if not action.operands or action.has("--offline"):
        return None
    first, rest = action.operands[0], action.operands[1:]
    if first == "pip":
        words = pip_arguments(rest)
        return None if words is None else _pip_fetch("uv", words)
    if first == "tool" and rest[:1] == ("run",):
        return _uvx(rest[1:])
    words = split_options(rest, UVX_VALUED, stop=first == "run")
    if words.has("--offline"):
        return None
    if first == "run":
        extra = words.values("-w", "--with")
        return CommandFetch("uv", Kind.WHEELS, extra) if extra else None
    if first == "tool" and rest[:1] == ("install",):
        return CommandFetch("uv", Kind.WHEELS, (*words.operands[1:], *words.values("-w", "--with")))
    if first == "add":
        return CommandFetch("uv", Kind.WHEELS, words.operands)
    if first == "sync":
        return CommandFetch("uv", Kind.WHEELS)
    if first == "python" and rest[:1] == ("install",):
        return CommandFetch("uv", Kind.OTHER, words.operands[1:])
    return None


def _uvx(args: Sequence[str]) -> CommandFetch | None:
    words = split_options(args, UVX_VALUED, stop=True)
    if words.has("--offline") or (not words.operands and not words.values("--from")):
        return None
    main = words.values("--from") or (words.operands[0].replace("@", "=="),)
    extra = tuple(part for value in words.values("-w", "--with") for part in value.split(","))
    # `uvx --with pytest==8.4.1 pytest` installs one pytest, the pinned one.
    pinned = {re.split(r"[=<>~!\[; ]", one)[0] for one in extra}
    what = (*(one for one in main if one not in pinned), *extra)
    return CommandFetch("uvx", Kind.WHEELS, what, requirements=words.values("--with-requirements"))


def _pipx(args: Sequence[str]) -> CommandFetch | None:
    words = split_options(args, ("--spec", "--python", "--pip-args"))
    if words.operands[:1] not in (("install",), ("run",)):
        return None
    return CommandFetch("pipx", Kind.WHEELS, words.values("--spec") or words.operands[1:2])


def _git(args: Sequence[str]) -> CommandFetch | None:
    outer = split_options(args, GIT_VALUED, stop=True)
    folder = outer.value("-C") or ""
    if not outer.operands:
        return None
    action, rest = outer.operands[0], outer.operands[1:]
    words = split_options(rest, CLONE_VALUED)
    if action == "clone":
        return _clone(words, folder)
    if action in ("fetch", "pull", "ls-remote"):
        where = words.operands[0] if words.operands else "origin"
        if where.startswith(("/", ".", "file:")):
            return None
        revision = words.operands[1] if len(words.operands) > 1 else None
        return CommandFetch("git", Kind.GIT, (where,), folder or None, revision)
    if (action, *rest[:1]) in (("submodule", "update"), ("lfs", "pull"), ("lfs", "fetch")):
        return CommandFetch("git", Kind.GIT, (), folder or None)
    return None


def _clone(words: Arguments, folder: str) -> CommandFetch | None:
    if not words.operands or not is_remote(words.operands[0]):
        return None
    url = words.operands[0]
    name = posixpath.basename(url.rstrip("/").rsplit(":", 1)[-1]).removesuffix(".git")
    target = words.operands[1] if len(words.operands) > 1 else name
    revision = words.value("-b", "--branch", "--revision")
    return CommandFetch("git", Kind.GIT, (url,), posixpath.join(folder, target), revision)


def _npm(tool: str) -> Callable[[Sequence[str]], CommandFetch | None]:
    def read(args: Sequence[str]) -> CommandFetch | None:
        words = split_options(args, NPM_VALUED)
        action = words.operands[:1]
        bare = tool in ("yarn", "pnpm") and not action
        if words.has("--offline") or not (
            bare or action in (("install",), ("i",), ("ci",), ("add",))
        ):
            return None
        packages = tuple(word for word in words.operands[1:] if not LOCAL_PATH.match(word))
        return CommandFetch(tool, Kind.NPM, packages)

    return read


def _npx(args: Sequence[str]) -> CommandFetch | None:
    words = split_options(args, NPM_VALUED, stop=True)
    if words.has("--no-install", "--offline") or not words.operands:
        return None
    return CommandFetch("npx", Kind.NPM, words.values("-p", "--package") or words.operands[:1])


def _packages(tool: str, args: Sequence[str]) -> CommandFetch | None:
    words = split_options(args, PACKAGE_VALUED)
    action, rest = words.operands[:1], words.operands[1:]
    if not action or action[0] not in PACKAGE_TOOLS[tool] or words.has("--offline"):
        return None
    if tool == "go" and action[0] == "mod":
        return CommandFetch("go", Kind.OTHER) if rest[:1] in (("download",), ("tidy",)) else None
    if tool == "go" and action[0] == "install" and not any("@" in word for word in rest):
        return None
    if tool == "cargo" and words.has("--path"):
        return None
    packages = tuple(word for word in rest if not LOCAL_PATH.match(word))
    if rest and not packages:
        return None
    return CommandFetch({"apt": "apt-get"}.get(tool, tool), Kind.OTHER, packages)


def _huggingface(args: Sequence[str]) -> CommandFetch | None:
    words = split_options(args, ("--revision", "--local-dir", "--cache-dir", "--repo-type"))
    if words.operands[:1] != ("download",):
        return None
    target, revision = words.value("--local-dir"), words.value("--revision")
    return CommandFetch("huggingface", Kind.OTHER, words.operands[1:2], target, revision)


PARSERS: Mapping[str, Callable[[Sequence[str]], CommandFetch | None]] = {
    "git": _git,
    "hf": _huggingface,
    "huggingface-cli": _huggingface,
    "npm": _npm("npm"),
    "npx": _npx,
    "pip": _pip,
    "pipx": _pipx,
    "pnpm": _npm("pnpm"),
    "uv": _uv,
    "uvx": _uvx,
    "yarn": _npm("yarn"),
}
