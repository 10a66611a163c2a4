"""Which backend a name stands for, made from the config."""

from pathlib import Path

from plimsoll.core.errors import UsageError
from plimsoll.runs.config import Config
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import Backend

__all__ = ["BACKENDS", "make_backend"]

BACKENDS = {"local": "local sandboxes (namespaces, no daemon)"}
"""The backends by name, each as it is introduced to a person."""


def make_backend(name: str, config: Config) -> Backend:
    """Make a backend. It starts nothing before it is entered."""
    if name != "local":
        raise UsageError(f"no backend is called {name!r}: choose {', '.join(BACKENDS)}")
    local = config.local
    defaults = LocalOptions()
    return LocalBackend(
        LocalOptions(
            roots={root: Path(folder) for root, folder in local.roots.items()},
            host_paths=defaults.host_paths if local.host_paths is None else local.host_paths,
            home=None if local.home is None else Path(local.home),
        )
    )
