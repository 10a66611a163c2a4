"""What an assets folder holds besides its assets: shims and settings, made from assets.toml.

They are written before assets.toml names what they serve, so that nothing is promised early.
"""

from dataclasses import dataclass
from pathlib import Path

from plimsoll.tasks.assets.asset import ASSETS_MOUNT, Asset
from plimsoll.tasks.assets.manifest_file import write_file
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.assets.store import make_readable_folder
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["damaged_derived_files", "write_derived_files"]

SHIMS = Path(__file__).parent / "shims"
NEIGHBOURS = ("-", "_", ".")
"""What may follow a repository's name in that of another one."""


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A file by its content, or a link by where it leads."""

    text: str
    mode: int = 0o644
    link: bool = False


def write_derived_files(assets: StagedAssets) -> None:
    """Write what differs from what should be there."""
    for path, wanted in _derived(assets).items():
        place = assets.folder / path
        if _is(place, wanted):
            continue
        make_readable_folder(place.parent)
        if wanted.link:
            fresh = place.with_name(f".partial-{place.name}")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(wanted.text)
            fresh.rename(place)
        else:
            write_file(place, wanted.text, wanted.mode)


def damaged_derived_files(assets: StagedAssets) -> dict[str, str]:
    """The paths of those that are not as they should be, each with what is wrong."""
    wrong = "not as `plimsoll stage` writes it"
    return {p: wrong for p, item in _derived(assets).items() if not _is(assets.folder / p, item)}


def _is(path: Path, wanted: DerivedFile) -> bool:
    try:
        if wanted.link:
            return path.is_symlink() and str(path.readlink()) == wanted.text
        executable = bool(path.stat().st_mode & 0o100) == bool(wanted.mode & 0o100)
        return executable and path.read_text("utf-8") == wanted.text
    except (OSError, UnicodeDecodeError):
        return False


def _derived(assets: StagedAssets) -> dict[str, DerivedFile]:
    found = {f"shims/{name}": DerivedFile((SHIMS / name).read_text(), 0o755)
             for name in ("git", "curl", "wget", "npm")}  # fmt: skip
    found["shims/npx"] = DerivedFile("npm", link=True)
    found["shims/lib.sh"] = DerivedFile((SHIMS / "lib.sh").read_text())
    found["shims/gitconfig"] = DerivedFile(_git_config(assets))
    found["shims/gitconfig-system"] = DerivedFile(
        f"[include]\n\tpath = /etc/gitconfig\n\tpath = {ASSETS_MOUNT}/shims/gitconfig\n"
    )
    found["shims/urls"] = DerivedFile("".join(sorted(_urls(assets))))
    tools = [asset for asset in assets.assets if asset.kind is Kind.UV_TOOL]
    for tool in tools:
        found[_installer(tool.pin)] = DerivedFile(_install_uv(tool))
    if tools:
        newest = max(tools, key=lambda tool: [int(x) for x in tool.pin.split(".") if x.isdigit()])
        for name in ("uv", "uvx"):
            found[f"bin/{name}"] = DerivedFile(f"../{newest.path}/{name}", link=True)
    return found


def _urls(assets: StagedAssets) -> list[str]:
    """URL, tab, path: what the curl and wget shims look up."""
    by_path = {asset.path: asset for asset in assets.assets}
    lines = [f"{a.source}\t{a.path}\n" for a in assets.assets if a.kind is Kind.URL]
    for request in assets.requests:
        if request.kind is Kind.UV_TOOL and "://" in request.what[0]:
            tool = by_path.get(request.assets[0])
            lines += [f"{request.what[0]}\t{_installer(tool.pin)}\n"] if tool else []
    return lines


def _installer(version: str) -> str:
    return f"shims/install-uv-{version}.sh"


def _install_uv(tool: Asset) -> str:
    text = (SHIMS / "install-uv.sh").read_text()
    return text.replace("@TOOL@", f"{ASSETS_MOUNT}/{tool.path}").replace("@VERSION@", tool.pin)


def _git_config(assets: StagedAssets) -> str:
    parts = ['[safe]\n\tdirectory = *\n[protocol "file"]\n\tallow = always\n']
    for asset in assets.assets:
        if asset.kind is Kind.GIT and asset.path.startswith("git/"):
            source = _escape(asset.source)
            parts.append(f'[url "file://{ASSETS_MOUNT}/{asset.path}"]\n')
            parts += [f'\tinsteadOf = "{source}{end}"\n' for end in ("", ".git", "/")]
            # Git replaces beginnings, so those of other repositories' names stay themselves.
            for sign in NEIGHBOURS:
                parts.append(f'[url "{source}{sign}"]\n\tinsteadOf = "{source}{sign}"\n')
    return "".join(parts)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
