"""There is an init for each supported machine type, and a clear error for others."""

import pytest

from plimsoll.core.errors import SandboxUnsupported
from plimsoll.sandboxes.container.init_binary import init_binary


@pytest.mark.parametrize(
    ("machine", "number"), [("x86_64", 62), ("amd64", 62), ("aarch64", 183), ("arm64", 183)]
)
def test_there_is_an_executable_init_for_each_machine(machine: str, number: int):
    binary = init_binary(machine)
    head = binary.path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[18:20], "little") == number
    assert len(binary.digest) == 64


@pytest.mark.parametrize("machine", ["riscv64", "", "../x", "*"])
def test_a_machine_without_an_init_is_refused(machine: str):
    with pytest.raises(SandboxUnsupported, match="x86_64"):
        init_binary(machine)
