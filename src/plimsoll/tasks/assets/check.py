"""Verifies an assets folder against its assets.toml, without changing anything."""

from pathlib import Path

from plimsoll.tasks.assets.derived import derived_damage
from plimsoll.tasks.assets.manifest import Assets
from plimsoll.tasks.assets.place import damage

__all__ = ["check_assets"]


def check_assets(folder: Path) -> tuple[Assets, dict[str, str]]:
    """The assets, and the paths of what is missing or damaged, each with what is wrong."""
    assets = Assets.load(folder)
    wrong = {asset.path: found for asset in assets.assets if (found := damage(folder, asset))}
    return assets, wrong | derived_damage(assets)
