"""Python wheels for tests."""

import zipfile
from pathlib import Path

__all__ = ["write_wheel"]


def write_wheel(folder: Path, version: str) -> None:
    """Write a wheel with one module, `tool`."""
    info = f"tool-{version}.dist-info"
    files = {
        "tool.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tool\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files)
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"tool-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
