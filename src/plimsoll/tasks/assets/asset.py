"""Assets, and the requests that they satisfy.

A request is content to stage for a fetch. Some fetches cannot be staged (`UnsupportedFetch`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from plimsoll.tasks.fetches.fetch import Fetch, Kind

__all__ = [
    "ASSETS_MOUNT",
    "Asset",
    "AssetMount",
    "Request",
    "UnsupportedFetch",
    "canonical_url",
    "optional_requests",
    "requests_of",
    "uv_requirement",
]

ASSETS_MOUNT = "/opt/plimsoll/assets"
"""Read-only mount point of the assets folder in a sandbox."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file or folder of the assets folder."""

    kind: Kind
    source: str
    """Origin: a repository, a URL or a package."""
    pin: str
    """Exact version: commits, a digest or a version number."""
    digest: str
    """`sha256:` of a file's bytes, or `tree:` of a folder's names, modes and contents."""
    size: int
    path: str
    """Relative to the assets folder."""
    mount: str | None
    """Additional mount point in sandboxes: the path that a task clones to."""
    how: str
    """Explanation for users of how a sandbox uses it."""


@dataclass(frozen=True, slots=True)
class Request:
    """Content that tasks fetch; once staged, with the paths of its assets."""

    kind: Kind
    what: tuple[str, ...]
    revision: str | None = None
    python: str | None = None
    """The Python that wheels are for, e.g. "3.11"."""
    assets: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests of the same content."""
        return (self.kind, self.what, self.revision, self.python)

    def describe(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        for_python = f" for Python {self.python}" if self.python else ""
        return f"{self.kind} {' '.join(self.what)}{at}{for_python}"


@dataclass(frozen=True, slots=True)
class AssetMount:
    """A read-only mount of a host folder at `target` in a sandbox."""

    source: Path
    target: str


UV_INSTALLER = re.compile(r"/uv(/.*)?/(uv-installer|install)\.sh$")
UV_VERSION = re.compile(r"/(\d+\.\d+\.\d+)/")
VCS = re.compile(r"(?:[\w.\-\[\],]+\s*@\s*)?git\+(?P<url>[a-z]+://[^@#\s]+(?:@(?=[^/]*/)[^@#\s]+)?)"
                 r"(?:@(?P<revision>[^#\s]+))?(?:#\S*)?")  # fmt: skip
SERVED = {"curl", "wget"}
"""The programs that have shims for staged files."""
BUILD_TOOLS = Request(Kind.WHEELS, ("setuptools", "wheel"))
"""The default build dependencies of pip for source packages."""


class UnsupportedFetch(Exception):
    """A fetch that cannot be staged, with the reason."""


def canonical_url(url: str) -> str:
    """Normalize the URL of a repository: remove `/` and `.git` at its end."""
    return url.strip().rstrip("/").removesuffix(".git").rstrip("/")


def uv_requirement(what: str) -> str:
    """Return the requirement for uv, given a requirement or the URL of an installer."""
    if "://" not in what:
        return what
    version = UV_VERSION.search(what)
    return f"uv=={version[1]}" if version else "uv"


def requests_of(fetch: Fetch) -> tuple[Request, ...]:
    """Return the requests that make a fetch work offline; `UnsupportedFetch` if none would."""
    match fetch.kind:
        case Kind.GIT:
            if not fetch.what:
                raise UnsupportedFetch("its repositories are unknown")
            # Skip remote names: the clone that defines the remote is a fetch itself.
            urls = [url for url in fetch.what if "://" in url or ":" in url.partition("/")[0]]
            return tuple(_git(url, fetch.revision) for url in urls)
        case Kind.URL:
            _check_served(fetch)
            return tuple(_url(_literal(url)) for url in fetch.what)
        case Kind.UV_TOOL:
            if any("://" in word for word in fetch.what):
                _check_served(fetch)
            return tuple(Request(Kind.UV_TOOL, (_literal(word),)) for word in fetch.what or ("uv",))
        case Kind.WHEELS:
            return _wheels(fetch)
        case Kind.NPM:
            return (Request(Kind.NPM, _words(fetch.what)),)
        case Kind.OTHER:
            raise UnsupportedFetch(f"{fetch.tool} cannot be staged; install it in the image")


def optional_requests(fetch: Fetch) -> tuple[Request, ...]:
    """Return further requests that a fetch may need if the image lacks them."""
    if fetch.kind is not Kind.WHEELS:
        return ()
    tool = (Request(Kind.UV_TOOL, ("uv",)),) if fetch.tool in ("uv", "uvx") else ()
    return tool if fetch.tool == "uvx" else (*tool, BUILD_TOOLS)


def _check_served(fetch: Fetch) -> None:
    if fetch.tool not in SERVED:
        raise UnsupportedFetch(f"only curl and wget can read staged files, {fetch.tool} cannot")


def _url(url: str) -> Request:
    if UV_INSTALLER.search(url):
        return Request(Kind.UV_TOOL, (url,))
    return Request(Kind.URL, (url.partition("#")[0],))


def _git(url: str, revision: str | None) -> Request:
    name = _literal(revision).removeprefix("origin/") if revision else None
    pin = None if name in ("HEAD", "FETCH_HEAD") else name
    return Request(Kind.GIT, (canonical_url(_literal(url)),), pin)


def _wheels(fetch: Fetch) -> tuple[Request, ...]:
    words = _words(fetch.what)
    found = [Request(Kind.WHEELS, words)]
    for word in words:
        if match := VCS.fullmatch(word):
            found.append(_git(match["url"], match["revision"]))
    return tuple(found)


def _words(what: tuple[str, ...]) -> tuple[str, ...]:
    if not what:
        raise UnsupportedFetch("its packages are unknown")
    for word in what:
        if word.startswith((".", "/", "~")):
            raise UnsupportedFetch(f"{word} is a local path with unknown dependencies")
    return tuple(sorted({_literal(word) for word in what}))


def _literal(word: str) -> str:
    """Return a word if it is safe as an argument: no option, no expansions."""
    word = word.strip()
    if not word or word.startswith("-") or any(sign in word for sign in "$`\n\t"):
        raise UnsupportedFetch(f'"{word}" is known only at run time')
    return word
