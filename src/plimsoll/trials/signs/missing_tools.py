"""Signs of missing tools: test runners, package managers and common commands of graders.

The list is closed. Any other missing command is most likely a deliverable of the agent, which
makes the 0 valid.
"""

import re

from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.output import Blame, Output, Sign

__all__ = ["interpreter_missing", "is_graders_script", "is_tool", "tool_missing"]

_TOOLS = frozenset(
    """
    pytest py.test uv uvx pip pipx poetry hatch pdm tox nox nosetests nose2 coverage virtualenv
    conda mamba python pypy node npm npx yarn pnpm bun deno corepack jest vitest mocha ava tsc
    ts-node playwright go gotestsum cargo rustc rustup mvn gradle java javac ant sbt ctest cmake
    make ninja meson bazel gcc g++ cc clang ruby gem bundle rspec rake php composer phpunit perl
    prove bats dotnet swift mix elixir stack cabal ghc curl wget git ssh rsync apt apt-get apk dnf
    yum unzip tar gzip xz jq bc diff cmp timeout awk sed grep patch xmllint sqlite3 bash
    """.split()  # noqa: SIM905 - read as words
)
_TEST_MODULES = frozenset({"pytest", "pip", "uv", "nose", "nose2", "tox", "coverage", "build"})
_VERSIONED = re.compile(r"(python|pip|pypy)\d?(?:\.\d{1,2})?t?$")
_UV_ENV = re.compile(r".{0,300}/\.(?:local/bin|cargo)/env$")

_NAME = r"([^\s:'\"‘’]{1,300})"
_NOT_FOUND = re.compile(
    rf"^([^\s:]{{1,300}}): (?:line )?(\d{{1,9}}): (?:exec: |\.: )?{_NAME}: "
    r"(?:command not found|not found|No such file or directory|cannot open)",
    re.M,
)
_INLINE = re.compile(
    r"^(?:/bin/|/usr/bin/)?((?:ba|da|z)?sh): (?:(?:line )?\d{1,9}: )?"
    rf"{_NAME}: (?:command )?not found",
    re.M,
)
_LAUNCHED = re.compile(
    rf"^(?:/usr/bin/|/bin/)?(?:env|xargs): [‘'\"]?{_NAME}['’\"]?: No such file or directory"
    rf"|^(?:timeout|nohup|stdbuf|nice): failed to run command [‘'\"]{_NAME}['’\"]: No such file",
    re.M,
)
_NO_MODULE = re.compile(r"^\S{0,300}python[\d.]{0,5}: No module named '?(\w{1,100})", re.M)
_NO_PYTHON = re.compile(r"^(?:error: )?No interpreter found for (Python \S{1,40})", re.M)
_GRADERS = re.compile(r"(?:(?:\.\./){0,20}|/)tests/|(?:\./)?(?:run[-_]?)?tests?\.sh$")


def is_graders_script(path: str) -> bool:
    """Whether a path in a shell's message is a script of the grader."""
    return _GRADERS.match(path) is not None and "/../" not in path


def tool_missing(output: Output, deliverables: Deliverables) -> Sign | None:
    """Return the sign of the first listed command that the grader's shell did not find."""
    if "not found" not in output.text and "No such file" not in output.text:
        return None
    found: list[tuple[int, str]] = []
    for match in _NOT_FOUND.finditer(output.text):
        if is_graders_script(match[1]) and (tool := _tool(match[3], deliverables)):
            found.append((match.start(), tool))
            break
    for match in _INLINE.finditer(output.text):
        if tool := _tool(match[2], deliverables):
            found.append((match.start(), tool))
            break
    for match in _LAUNCHED.finditer(output.text):
        if tool := _tool(match[1] or match[2], deliverables):
            found.append((match.start(), tool))
            break
    return _sign(output, *min(found)) if found else None


def interpreter_missing(output: Output, deliverables: Deliverables) -> Sign | None:
    """Return the sign of `python -m pytest` without pytest, or of uv without its Python."""
    for match in _NO_MODULE.finditer(output.text):
        if match[1] in _TEST_MODULES and not deliverables.has_tool(match[1]):
            return _sign(output, match.start(), match[1])
    if match := _NO_PYTHON.search(output.text):
        return _sign(output, match.start(), match[1])
    return None


def is_tool(name: str) -> bool:
    versioned = _VERSIONED.match(name)
    return (versioned[1] if versioned else name) in _TOOLS


def _tool(command: str, deliverables: Deliverables) -> str | None:
    """Return the name of a listed tool, unless the agent was to install it."""
    if _UV_ENV.match(command):
        return "uv" if ".local" in command else "cargo"
    name = command.rsplit("/", 1)[-1]
    if not is_tool(name) or deliverables.has_tool(name):
        return None
    # A relative path, or one in the working directory, is work: ./gradlew, /app/bin/node.
    is_system_path = "/" not in command or command.startswith(
        ("/usr/", "/bin/", "/root/", "/home/")
    )
    return name if is_system_path else None


def _sign(output: Output, position: int, tool: str) -> Sign:
    return Sign(
        Blame.GRADER,
        f"the grader could not run `{tool}`, which is not installed",
        output.evidence(position),
    )
