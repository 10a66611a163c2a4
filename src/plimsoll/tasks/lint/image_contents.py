"""What an image is known to hold: programs, Python packages, folders. And what is not known.

Three answers are possible for a program or a module: it is there, it is not there, or that
cannot be told, because the base or something the Dockerfile runs is not understood.
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

# Base images that hold no Python packages but pip and its own.
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
# Programs that leave the set of installed packages as it is.
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
    """The facts about one image."""

    base: str = ""
    bare: bool = False
    """The base holds no Python packages of its own."""
    opaque: bool = True
    """Something may be there that cannot be seen."""
    workdir: str = "/"
    programs: set[str] = field(default_factory=set[str])
    packages: dict[str, str] = field(default_factory=dict[str, str])
    """Python packages by name, each with what follows it: `==8.4.1`."""
    system: set[str] = field(default_factory=set[str])
    """Packages of the distribution."""
    uv_tools: set[str] = field(default_factory=set[str])
    """What `uvx` and `uv tool install` have put into uv's own store."""
    folders: tuple[str, ...] = ()
    """Folders and files that copies, clones and downloads make."""

    def has_module(self, module: str) -> bool | None:
        """Whether a Python module can be imported; None where that cannot be told."""
        name = package_name(module)
        for package in self.packages:
            if name in (package, *IMPORT_NAMES.get(package, ()), package.removeprefix("python-")):
                return True
        if self.system & {f"python3-{name}", f"python-{name}", f"py3-{name}"}:
            return True
        return None if self.opaque or not self.bare or self._may_depend(name) else False

    def _may_depend(self, name: str) -> bool:
        """Packages bring others along; pytest is not one that most do."""
        return bool(self.packages) and name not in ("pytest", "pytest-json-ctrf")


UNKNOWN_IMAGE = ImageContents()


def read_image(build: DockerfileBuild) -> ImageContents:
    """The facts about the final image of a Dockerfile."""
    chain = build.chain
    if not chain:
        return ImageContents()
    base = chain[0].base
    repository = base.split("@")[0].rsplit("/", 1)[-1].split(":")[0]
    official = "/" not in base or base.startswith(("docker.io/library/", "library/"))
    image = ImageContents(
        base=base, bare=official and repository in BARE, workdir=chain[-1].workdir
    )
    image.opaque = not image.bare
    image.programs |= set(BASE_PROGRAMS.get(repository, ()))
    if repository == "python" and not re.search(r"slim|alpine", base):
        image.programs |= {"curl", "git", "wget"}
    folders: list[str] = []
    for stage in chain:
        folders += _read_stage(image, stage, build)
        for found in stage_fetches(build, stage):
            _install(image, found.fetch)
            folders += [found.fetch.target] if found.fetch.target else []
    image.folders = tuple(folder for folder in folders if folder)
    return image


def _read_stage(image: ImageContents, stage: Stage, build: DockerfileBuild) -> list[str]:
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
    folders = list(stage.folders)
    for run in stage.runs:
        for command in run.script.named("mkdir", "ln", "cp", "mv", "tar", "touch"):
            folders += [arg for arg in command.args if arg.startswith("/")]
    return folders


def _is_understood(command: Command, build: DockerfileBuild) -> bool:
    """It is known what the command adds to the image."""
    plain = command.unwrapped()
    if plain.name in ("bash", "sh") and plain.inner is None and plain.pipeline[:1] != ("curl",):
        # A script of the build context that installs nothing is as good as read.
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
    """The programs that a fetch brings: an installed package's own name among them."""
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
    """Names that differ in case, `-`, `_` and `.` only are the same package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(image: ImageContents, fetch: Fetch) -> bool:
    """Everything that a fetch asks for is in the image already."""
    if not fetch.what:
        return False
    if fetch.kind is Kind.UV_TOOL:
        return {"uv", "uvx"} <= image.programs
    if fetch.tool in ("apt-get", "apk", "dnf", "yum"):
        wanted = {package.split("=")[0] for package in fetch.what}
        return wanted <= image.system or wanted <= image.programs
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
    wanted = match[2].replace(" ", "")
    # What is asked for by another pin than the installed one would be fetched.
    return not wanted.startswith("==") or installed.replace(" ", "") == wanted
