"""Local sources of assets for hosts without a network: `--from KIND:SOURCE=PATH`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.tasks.assets.asset import Request, canonical_url
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["LocalSources", "parse_local_sources"]

FORMS = "git:URL=PATH, url:URL=FILE, wheels=FOLDER or npm=FOLDER"


@dataclass(slots=True)
class LocalSources:
    """Local replacements for remote content."""

    git: dict[str, Path] = field(default_factory=dict[str, Path])
    urls: dict[str, Path] = field(default_factory=dict[str, Path])
    wheels: Path | None = None
    npm: Path | None = None

    def requests(self) -> Iterable[Request]:
        """Yield requests for all local sources, which are staged even if no task fetches them."""
        yield from (Request(Kind.URL, (url,)) for url in self.urls)
        yield from (Request(Kind.GIT, (url,)) for url in self.git)


def parse_local_sources(values: Sequence[str]) -> LocalSources:
    """Parse the `--from` options; a `UsageError` names the invalid one."""
    sources = LocalSources()
    for value in values:
        if value.startswith("wheels="):
            sources.wheels = _existing_folder(value)
        elif value.startswith("npm="):
            sources.npm = _existing_folder(value)
        else:
            _add_copy(sources, value)
    return sources


def _add_copy(sources: LocalSources, value: str) -> None:
    """Add the local copy of a repository or of the file of a URL."""
    kind, _, rest = value.partition(":")
    source, path = _split(rest)
    if kind not in ("git", "url") or not source:
        raise UsageError(f"--from {value}: expected {FORMS}")
    local = Path(path).expanduser().absolute()
    if not path or not local.exists():
        raise UsageError(f"--from {value}: no such file or folder: {path}")
    if kind == "git":
        sources.git[canonical_url(source)] = local
    elif local.is_dir():
        raise UsageError(f"--from {value}: {path} is a folder; a URL needs a file")
    else:
        sources.urls[source] = local


def _split(text: str) -> tuple[str, str]:
    """Split URL and path, which may both contain `=`: the longest URL with an existing path."""
    for at in (n for n in range(len(text) - 1, 0, -1) if text[n] == "="):
        if Path(text[at + 1 :]).expanduser().exists():
            return text[:at], text[at + 1 :]
    source, _, path = text.rpartition("=")
    return source, path


def _existing_folder(value: str) -> Path:
    _, _, path = value.partition("=")
    folder = Path(path).expanduser().absolute()
    if not path or not folder.is_dir():
        raise UsageError(f"--from {value}: no such folder: {path}")
    return folder
