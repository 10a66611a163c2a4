"""Derived files of an assets folder: shims and settings, generated from its assets.

They are written before assets.toml lists the assets that they serve.
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
"""Characters that may follow the name of a repository in the name of another one."""


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A file with its content, or a link with its target."""

    text: str
    mode: int = 0o644
    link: bool = False


def write_derived_files(assets: StagedAssets) -> None:
    """Write the derived files that are missing or differ."""
    for path, expected in _derived_files(assets).items():
        target = assets.folder / path
        if _is_current(target, expected):
            continue
        make_readable_folder(target.parent)
        if expected.link:
            fresh = target.with_name(f".partial-{target.name}")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(expected.text)
            fresh.rename(target)
        else:
            write_file(target, expected.text, expected.mode)


def damaged_derived_files(assets: StagedAssets) -> dict[str, str]:
    """Return the paths of derived files that are missing or changed, with the problem."""
    problem = "missing or changed since `plimsoll stage` wrote it"
    return {
        p: problem
        for p, item in _derived_files(assets).items()
        if not _is_current(assets.folder / p, item)
    }


def _is_current(path: Path, expected: DerivedFile) -> bool:
    try:
        if expected.link:
            return path.is_symlink() and str(path.readlink()) == expected.text
        executable = bool(path.stat().st_mode & 0o100) == bool(expected.mode & 0o100)
        return executable and path.read_text("utf-8") == expected.text
    except (OSError, UnicodeDecodeError):
        return False


def _derived_files(assets: StagedAssets) -> dict[str, DerivedFile]:
    files = {f"shims/{name}": DerivedFile((SHIMS / name).read_text(), 0o755)
             for name in ("git", "curl", "wget", "npm")}  # fmt: skip
    files["shims/npx"] = DerivedFile("npm", link=True)
    files["shims/lib.sh"] = DerivedFile((SHIMS / "lib.sh").read_text())
    files["shims/gitconfig"] = DerivedFile(_git_config(assets))
    files["shims/gitconfig-system"] = DerivedFile(
        f"[include]\n\tpath = /etc/gitconfig\n\tpath = {ASSETS_MOUNT}/shims/gitconfig\n"
    )
    files["shims/urls"] = DerivedFile("".join(sorted(_urls(assets))))
    tools = [asset for asset in assets.assets if asset.kind is Kind.UV_TOOL]
    for tool in tools:
        files[_installer(tool.pin)] = DerivedFile(_install_uv(tool))
    if tools:
        newest = max(tools, key=lambda tool: [int(x) for x in tool.pin.split(".") if x.isdigit()])
        for name in ("uv", "uvx"):
            files[f"bin/{name}"] = DerivedFile(f"../{newest.path}/{name}", link=True)
    return files


def _urls(assets: StagedAssets) -> list[str]:
    """Return lines of URL, tab and path for the curl and wget shims."""
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
            # Git replaces prefixes, so longer names of other repositories map to themselves.
            for sign in NEIGHBOURS:
                parts.append(f'[url "{source}{sign}"]\n\tinsteadOf = "{source}{sign}"\n')
    return "".join(parts)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
