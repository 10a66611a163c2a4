"""The committed binaries match the sources."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from parts import need

INIT = Path(__file__).parents[3] / "src/plimsoll/sandboxes/container/init"


@pytest.mark.timeout(300)
def test_the_binaries_match_the_sources():
    missing = importlib.util.find_spec("ziglang") is None
    need("ziglang", "the compiler is not installed" if missing else None)
    done = subprocess.run(
        [sys.executable, str(INIT / "build.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_a_binary_is_static_and_for_its_machine(machine: str, number: int):
    binary = (INIT / "bin" / f"plimsoll-init-{machine}").read_bytes()
    assert binary[:4] == b"\x7fELF"
    assert int.from_bytes(binary[18:20], "little") == number
    assert b"ld-musl" not in binary
    assert str(INIT).encode() not in binary
