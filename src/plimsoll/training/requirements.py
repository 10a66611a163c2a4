"""Whether what training needs is installed. Imports none of it."""

import importlib.util

from plimsoll.core.errors import UsageError

__all__ = ["check_installed"]

_NEEDED = ("torch", "transformers", "safetensors", "jinja2", "numpy", "matplotlib")


def check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"training needs {', '.join(missing)}, which is not installed: "
            "pip install 'plimsoll-rl[train]'"
        )
