"""Command arguments: options, their values and operands; variables, URLs and paths in them."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Arguments", "expand", "host_of", "is_remote", "join_path", "split_options"]

VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*)(?::?-([^{}$]*))?\})")
SCP_LIKE = re.compile(r"(?:[\w.-]+@)?([\w-]+(?:\.[\w-]+)+):(?!/?\d)(.+)")
LOCAL_HOSTS = re.compile(r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1?|host\.docker\.internal")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a command, split into options and operands."""

    operands: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """Names and values in order; the value of a flag is ""."""

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> tuple[str, ...]:
        return tuple(value for name, value in self.options if name in names and value)

    def value(self, *names: str) -> str | None:
        found = self.values(*names)
        return found[-1] if found else None


def split_options(args: Sequence[str], with_value: Sequence[str], stop: bool = False) -> Arguments:
    """Split arguments. With `stop`, all words after the first operand are operands."""
    operands: list[str] = []
    options: list[tuple[str, str]] = []
    at = 0
    while at < len(args):
        arg = args[at]
        at += 1
        if arg == "--":
            operands += args[at:]
            break
        if not arg.startswith("-") or arg == "-":
            operands.append(arg)
            if stop:
                operands += args[at:]
                break
            continue
        name, equals, value = arg.partition("=")
        bundle = "" if arg.startswith("--") else _valued_letter(arg, with_value)
        if equals and arg.startswith("--"):
            options.append((name, value))
        elif arg in with_value and at < len(args):
            options.append((arg, args[at]))
            at += 1
        elif bundle:
            # `-LsSfo file` and `-ofile`: the last option takes a value.
            options += [(f"-{letter}", "") for letter in arg[1 : arg.index(bundle)]]
            value = arg[arg.index(bundle) + 1 :]
            if not value and at < len(args):
                value = args[at]
                at += 1
            options.append((f"-{bundle}", value))
        else:
            options.append((arg, ""))
            if not arg.startswith("--") and len(arg) > 2:
                options += [(f"-{letter}", "") for letter in arg[1:]]
    return Arguments(tuple(operands), tuple(options))


def _valued_letter(arg: str, with_value: Sequence[str]) -> str:
    return next((letter for letter in arg[1:] if f"-{letter}" in with_value), "")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand the variables in `env`; leave others as written."""

    def value(found: re.Match[str]) -> str:
        found_value = env.get(found[1] or found[2])
        return (
            found_value
            if found_value is not None
            else (found[3] if found[3] is not None else found[0])
        )

    for _ in range(4):  # A value may itself name a variable.
        again = VARIABLE.sub(value, text)
        if again == text:
            break
        text = again
    return text


def host_of(url: str) -> str | None:
    """Return the host of a URL or of git's `user@host:path`."""
    if "://" in url:
        try:
            return urlsplit(url).hostname
        except ValueError:
            return None
    match = SCP_LIKE.fullmatch(url)
    return match[1] if match else None


def is_remote(url: str) -> bool:
    """Whether a URL has a remote host: not local, not a sibling service, not a variable."""
    if "://" not in url and not SCP_LIKE.fullmatch(url) and re.match(r"[\w-]+(\.[\w-]+)+/", url):
        url = f"http://{url}"
    host = host_of(url)
    if url.startswith("file:") or not host or "$" in host or LOCAL_HOSTS.fullmatch(host):
        return False
    return "." in host


def join_path(folder: str, path: str) -> str:
    """Resolve a path against a folder; a path that begins with a variable is unchanged."""
    return path if path.startswith(("$", "~")) else posixpath.normpath(posixpath.join(folder, path))
