"""Builds the init's static binaries, reproducibly, for each machine type.

python build.py            builds them into bin/
python build.py --check    fails if bin/ differs from a build of the sources
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["MACHINES", "build", "source_digest"]

MACHINES = ("x86_64", "aarch64")
HERE = Path(__file__).resolve().parent
FLAGS = (
    "-std=c11",
    "-Os",
    "-static",
    "-s",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-D_GNU_SOURCE",
    "-ffile-prefix-map=.=plimsoll-init",
)
ZIG = (sys.executable, "-m", "ziglang")


def _sources(*endings: str) -> list[Path]:
    return sorted(path for ending in endings for path in HERE.glob(f"*{ending}"))


def source_digest() -> str:
    """A digest of the inputs of the binaries: sources, flags, compiler."""
    version = subprocess.run([*ZIG, "version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(b"\0".join([*(flag.encode() for flag in FLAGS), version.strip()]))
    for path in _sources(".c", ".h"):
        content = path.read_bytes()
        digest.update(f"\0{path.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()


def build(machine: str, folder: Path) -> Path:
    """Build the binary of one machine type into `folder`."""
    out = folder / f"plimsoll-init-{machine}"
    names = [path.name for path in _sources(".c")]
    target = f"{machine}-linux-musl"
    command = [*ZIG, "cc", "-target", target, *FLAGS, *names, "-o", str(out)]
    subprocess.run(command, cwd=HERE, check=True)
    return out


def _check() -> int:
    committed = HERE / "bin"
    stale: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for machine in MACHINES:
            built = build(machine, Path(folder))
            kept = committed / built.name
            if not kept.exists() or kept.read_bytes() != built.read_bytes():
                stale.append(built.name)
    source = committed / "SOURCE"
    if not source.exists() or source.read_text().strip() != source_digest():
        stale.append("SOURCE")
    if stale:
        print(
            f"not up to date with the sources: {', '.join(stale)}; run `make init`", file=sys.stderr
        )
    return 1 if stale else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the init's binaries.")
    parser.add_argument("--check", action="store_true", help="compare with bin/, write nothing")
    if parser.parse_args().check:
        return _check()
    folder = HERE / "bin"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for machine in MACHINES:
            built = build(machine, Path(made))
            built.replace(folder / built.name)  # atomic: a container may be starting with it
    (folder / "SOURCE").write_text(source_digest() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
