"""Contents of an image, from its Dockerfile: programs and Python packages.

A program or module is present, absent or unknown. It is unknown if the base image or a command
of the Dockerfile is not understood.
"""

import posixpath
import re
from dataclasses import dataclass, field

from plimsoll.tasks.dockerfile.stages import DockerfileBuild, Stage
from plimsoll.tasks.fetches.fetch import Fetch, Kind
from plimsoll.tasks.fetches.finder import stage_fetches
from plimsoll.tasks.shell.options import split_options
from plimsoll.tasks.shell.syntax import Command

__all__ = [
    "UNKNOWN_IMAGE",
    "ImageContents",
    "is_installed",
    "package_name",
    "programs_of",
    "read_image",
]

# Base images without Python packages other than pip and its dependencies.
# fmt: off
BARE = {
    "almalinux", "alpine", "busybox", "buildpack-deps", "debian", "eclipse-temurin", "fedora",
    "gcc", "golang", "node", "openjdk", "php", "python", "rockylinux", "ruby", "rust", "scratch",
    "ubuntu",
}
BASE_PROGRAMS = {
    "alpine": ("wget",),
    "buildpack-deps": ("curl", "git", "wget"),
    "gcc": ("gcc", "git", "curl", "wget"),
    "golang": ("go",),
    "node": ("node", "npm", "npx", "yarn"),
    "python": ("pip", "pip3", "python", "python3"),
    "rust": ("cargo", "rustc"),
    "uv": ("uv", "uvx"),
}
PACKAGE_PROGRAMS = {
    "curl": ("curl",),
    "default-jdk": ("java", "javac"),
    "golang": ("go",),
    "golang-go": ("go",),
    "nodejs": ("node", "npm", "npx"),
    "npm": ("npm", "npx"),
    "pipx": ("pipx",),
    "python3": ("python3",),
    "python3-pip": ("pip", "pip3"),
    "python3-pytest": ("pytest",),
    "uv": ("uv", "uvx"),
}
# Programs that do not change the set of installed packages.
HARMLESS = {
    ":", "[", "[[", "adduser", "apk", "apt", "apt-get", "awk", "cat", "cd", "chgrp", "chmod",
    "chown", "conda", "cp", "curl", "declare", "dnf", "echo", "exit", "export", "find", "git",
    "grep", "groupadd", "if", "ln", "locale-gen", "ls", "mkdir", "mv", "npm", "printf", "rm", "sed",
    "set", "source", "ssh-keygen", "sync", "tar", "tee", "test", "touch", "tr", "true", "uname",
    "unset", "unzip", "update-ca-certificates", "useradd", "usermod", "wget", "which", "xargs",
    "yum",
}
# fmt: on
IMPORT_NAMES = {
    "beautifulsoup4": ("bs4",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "pillow": ("pil",),
    "protobuf": ("google",),
    "pycryptodome": ("crypto",),
    "pyjwt": ("jwt",),
    "python-dateutil": ("dateutil",),
    "python-dotenv": ("dotenv",),
    "pyyaml": ("yaml",),
    "scikit-image": ("skimage",),
    "scikit-learn": ("sklearn",),
}
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)")


@dataclass(slots=True)
class ImageContents:
    """The known contents of one image."""

    bare: bool = False
    """The base image has no Python packages of its own."""
    opaque: bool = True
    """The image may have contents that are not known."""
    workdir: str = "/"
    programs: set[str] = field(default_factory=set[str])
    packages: dict[str, str] = field(default_factory=dict[str, str])
    """Version specifiers of Python packages by name, e.g. `==8.4.1`."""
    system: set[str] = field(default_factory=set[str])
    """Packages of the Linux distribution."""
    uv_tools: set[str] = field(default_factory=set[str])
    """Tools that `uvx` and `uv tool install` have added to uv's store."""

    def has_module(self, module: str) -> bool | None:
        """Whether a Python module can be imported; None if unknown."""
        name = package_name(module)
        for package in self.packages:
            if name in (package, *IMPORT_NAMES.get(package, ()), package.removeprefix("python-")):
                return True
        if self.system & {f"python3-{name}", f"python-{name}", f"py3-{name}"}:
            return True
        return None if self.opaque or not self.bare or self._may_be_dependency(name) else False

    def _may_be_dependency(self, name: str) -> bool:
        """Whether another package may depend on it; few packages depend on pytest."""
        return bool(self.packages) and name not in ("pytest", "pytest-json-ctrf")


UNKNOWN_IMAGE = ImageContents()


def read_image(build: DockerfileBuild) -> ImageContents:
    """Return the contents of the final image of a Dockerfile."""
    chain = build.chain
    if not chain:
        return ImageContents()
    base = chain[0].base
    repository = base.split("@")[0].rsplit("/", 1)[-1].split(":")[0]
    official = "/" not in base or base.startswith(("docker.io/library/", "library/"))
    image = ImageContents(bare=official and repository in BARE, workdir=chain[-1].workdir)
    image.opaque = not image.bare
    image.programs |= set(BASE_PROGRAMS.get(repository, ()))
    if repository == "python" and not re.search(r"slim|alpine", base):
        image.programs |= {"curl", "git", "wget"}
    for stage in chain:
        _read_stage(image, stage, build)
        for found in stage_fetches(build, stage):
            _install(image, found.fetch)
    return image


def _read_stage(image: ImageContents, stage: Stage, build: DockerfileBuild) -> None:
    for copied in stage.copies:
        if copied.stage is None:
            continue
        names = {posixpath.basename(source.rstrip("/")) for source in copied.sources}
        image.programs |= {name for name in names if name and "*" not in name}
        if any("site-packages" in s or "/venv" in s or "/.venv" in s for s in copied.sources):
            image.opaque = True
    for run in stage.runs:
        for command in run.script.commands:
            if not _is_understood(command, build):
                image.opaque = True


def _is_understood(command: Command, build: DockerfileBuild) -> bool:
    """Whether the effect of a command on the image is known."""
    plain = command.unwrapped()
    if plain.name in ("bash", "sh") and plain.inner is None and plain.pipeline[:1] != ("curl",):
        # A script of the build context counts as understood if it installs nothing.
        return _script_installs_nothing(plain, build)
    if plain.name in ("pip", "pip3", "uv", "python", "python3"):
        return not any(arg in (".", "-e", "--editable", "sync") for arg in plain.args)
    return plain.name in HARMLESS or plain.inner is not None


def _script_installs_nothing(plain: Command, build: DockerfileBuild) -> bool:
    words = split_options(plain.args, ()).operands
    if not words:
        return False
    path = build.context / posixpath.basename(words[0])
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return not re.search(r"\b(?:pip3?|uv|conda|easy_install|setup\.py)\b", text)


def _install(image: ImageContents, fetch: Fetch) -> None:
    image.programs |= programs_of(fetch)
    if fetch.tool in ("uvx", "uv"):
        image.uv_tools |= set(fetch.what)
    if fetch.tool == "uvx":
        return
    if fetch.kind is Kind.WHEELS:
        for requirement in fetch.what:
            if requirement.startswith("-r"):
                image.opaque = True
            match = REQUIREMENT.fullmatch(requirement.split(";")[0].split("@")[0])
            if match:
                image.packages[package_name(match[1])] = match[2].strip()
    elif fetch.tool in ("apt-get", "apk", "dnf", "yum", "aptitude", "microdnf"):
        image.system |= {package.split("=")[0] for package in fetch.what}
    elif fetch.tool in ("conda", "mamba", "micromamba", "poetry", "pdm"):
        image.opaque = True


def programs_of(fetch: Fetch) -> set[str]:
    """Return the programs that a fetch installs, including the names of its packages."""
    if fetch.kind is Kind.UV_TOOL:
        return {"uv", "uvx"}
    if fetch.kind in (Kind.GIT, Kind.URL) or fetch.tool in ("uvx", "npx"):
        return set()
    found: set[str] = set()
    for item in fetch.what:
        name = re.split(r"[=<>~!@\[; ]", item.lstrip("@").rsplit("/", 1)[-1])[0]
        found |= {name, *PACKAGE_PROGRAMS.get(name, ())}
    return found - {""}


def package_name(name: str) -> str:
    """Normalize a package name: case, `-`, `_` and `.` are equivalent."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(image: ImageContents, fetch: Fetch) -> bool:
    """Whether the image already has everything that a fetch requests."""
    if not fetch.what:
        return False
    if fetch.kind is Kind.UV_TOOL:
        return {"uv", "uvx"} <= image.programs
    if fetch.tool in ("apt-get", "apk", "dnf", "yum"):
        packages = {package.split("=")[0] for package in fetch.what}
        return packages <= image.system or packages <= image.programs
    if fetch.tool in ("pip", "uv"):
        return all(_has_requirement(image, requirement) for requirement in fetch.what)
    if fetch.tool == "uvx":
        return "uvx" in image.programs and set(fetch.what) <= image.uv_tools
    return fetch.tool == "npx" and set(fetch.what) <= image.programs


def _has_requirement(image: ImageContents, requirement: str) -> bool:
    match = REQUIREMENT.fullmatch(requirement.split(";")[0])
    if match is None:
        return False
    installed = image.packages.get(package_name(match[1]))
    if installed is None:
        return False
    required = match[2].replace(" ", "")
    # A different pin than the installed version is fetched.
    return not required.startswith("==") or installed.replace(" ", "") == required
