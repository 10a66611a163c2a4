"""A build by the engine's own, classic builder.

A build by `docker buildx`, for what only BuildKit does.
"""

import asyncio
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint
from plimsoll.sandboxes.docker.daemon.errors import (
    DaemonError,
    full_disk_error,
    is_full_disk,
    trimmed,
)
from plimsoll.sandboxes.docker.files.tar_stream import tar_stream
from plimsoll.sandboxes.docker.images.build_input import (
    DOCKERFILE,
    BuildContext,
    BuildDockerfile,
    RenderedDockerfile,
    ignore_file,
)
from plimsoll.sandboxes.host.temporary import temporary_folder
from plimsoll.sandboxes.protocol import OnOutput
from plimsoll.tasks.dockerfile.parser import Instruction

__all__ = ["BuildxBuild", "ClassicBuild", "has_buildx"]

_CLASSIC_STEP = re.compile(r"Step (\d+)/\d+ : ")
_CLASSIC_NOTICE = re.compile(r"\s*(---> |Step \d+/\d+ : |Removing intermediate container )")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ClassicBuild:
    """One build; knows at any time which instruction is being worked on."""

    def __init__(self, recipe: BuildDockerfile, written: RenderedDockerfile) -> None:
        self.at: Instruction | None = None
        self._recipe = recipe
        self._written = written
        self._last = {"stdout": "", "stderr": ""}
        """The last line that the instruction's command printed."""

    async def run(
        self,
        engine: Daemon,
        context: BuildContext,
        tag: str,
        labels: Mapping[str, str],
        say: OnOutput,
    ) -> None:
        """Build and tag. Raises `BuildError` with the line at fault."""
        params = {
            "t": tag,
            "dockerfile": DOCKERFILE,
            "buildargs": msgspec.json.encode(self._recipe.args).decode(),
            "rm": "1",
            "forcerm": "1",
        }
        text = self._written.labelled(labels)
        try:
            async with (
                tar_stream(lambda tar: context.write(tar, text)) as tar,
                aclosing(engine.progress("/build", "build", params=params, body=tar)) as lines,
            ):
                async for told in lines:
                    self._told(told.stream, say)
        except DaemonError as error:
            raise self._error(error) from None

    def _told(self, text: str, say: OnOutput) -> None:
        plain = _COLOUR.sub("", text)
        stream = "stdout" if plain == text else "stderr"
        if plain:
            say(stream, plain.encode())
        if step := _CLASSIC_STEP.match(plain):
            number = int(step[1]) - 1
            steps = self._written.steps
            self.at = (steps[number] if number < len(steps) else None) or self.at
            self._last = {"stdout": "", "stderr": ""}
        elif plain.strip() and not _CLASSIC_NOTICE.match(plain):
            self._last[stream] = plain.strip().splitlines()[-1]

    def _error(self, error: DaemonError) -> BuildError:
        if self.at is None:
            return BuildError(f"{self._recipe.file}: {error.said}")
        last = self._last["stderr"] or self._last["stdout"]
        file, code = self._recipe.file, error.exit_code
        return BuildError(self._written.failed(self.at, file, error.said, code, last))


_TERMINATE_SECONDS = 10.0
_LONGEST_LINE = 1 << 16
_BUILDX_STEP = re.compile(r"#(\d+) \[[^]]*\d+/\d+\] (.+)")
_BUILDX_OUTPUT = re.compile(r"#(\d+) \d+\.\d+ (.*\S)")
_BUILDX_STEP_FAILED = re.compile(r"#(\d+) ERROR: (.+)")
_BUILDX_FAILED = re.compile(r"ERROR: (.+)")
_EXIT_CODE = re.compile(r"exit code: (\d+)")
_PARSE_ERROR = re.compile(r"parse error (?:on )?line (\d+)")


@functools.cache
def has_buildx() -> bool:
    """Whether there is a `docker buildx` command here."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        asked = subprocess.run([docker, "buildx", "version"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


class BuildxBuild:
    """One build; the engine gets the image when it is done."""

    def __init__(self, recipe: BuildDockerfile, written: RenderedDockerfile) -> None:
        self.at: Instruction | None = None
        self._recipe = recipe
        self._written = written
        self._steps: dict[str, Instruction] = {}
        self._printed: dict[str, str] = {}
        self._failed_at: Instruction | None = None
        self._said = ""
        self._last = ""

    async def run(
        self,
        endpoint: Endpoint,
        context: Path,
        dockerfile: Path,
        tag: str,
        labels: Mapping[str, str],
        say: OnOutput,
    ) -> None:
        """Build, load and tag. Raises `BuildError` with the line at fault."""
        with temporary_folder() as folder:
            own = folder / "Dockerfile"
            own.write_text(self._written.labelled(labels))
            rules = ignore_file(context, dockerfile)
            if rules.is_file():
                shutil.copy(rules, own.with_name("Dockerfile.dockerignore"))
            words = ["--file", str(own), "--tag", tag]
            words += [f"--build-arg={key}={value}" for key, value in self._recipe.args.items()]
            code = await self._follow([*words, str(context)], endpoint, say)
        if code != 0 and is_full_disk(self._said):
            raise full_disk_error(str(endpoint), trimmed(self._said))
        if code != 0:
            raise self._error(code)

    async def _follow(self, words: list[str], endpoint: Endpoint, say: OnOutput) -> int:
        # What points to another engine is left out of the environment.
        env = {key: value for key, value in os.environ.items() if key != "DOCKER_CONTEXT"}
        process = await asyncio.create_subprocess_exec(
            "docker", "buildx", "build", "--load", "--progress=plain", *words,
            env={**env, **endpoint.environment()},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            rest = b""
            while piece := await process.stdout.read(_LONGEST_LINE):
                say("stdout", piece)
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for line in lines:
                    self._told(line.decode("utf-8", "replace"))
            self._told(rest.decode("utf-8", "replace"))
            return await process.wait()
        finally:
            if process.returncode is None:
                await run_to_completion(_terminate(process))

    def _told(self, line: str) -> None:
        if step := _BUILDX_STEP.match(line):
            self.at = self._find(step[2]) or self.at
            if self.at is not None:
                self._steps[step[1]] = self.at
        elif printed := _BUILDX_OUTPUT.match(line):
            self._printed[printed[1]] = printed[2]
        elif failed := _BUILDX_STEP_FAILED.match(line):
            # Others that run at the same time may still be told of after it.
            self._failed_at = self._steps.get(failed[1], self.at)
            self._said, self._last = failed[2], self._printed.get(failed[1], "")
        elif failed := _BUILDX_FAILED.match(line):
            self._said = self._said or failed[1]

    def _find(self, text: str) -> Instruction | None:
        """The instruction of a step, by its words."""
        said = " ".join(text.split())
        for step in self._written.steps:
            if step is not None and said.startswith(f"{step.keyword} "):
                words = " ".join(step.args.split())
                if words[:80] in said:
                    return step
        return None

    def _error(self, code: int) -> BuildError:
        file, said = self._recipe.file, trimmed(self._said)
        if self._failed_at is not None:
            ended = _EXIT_CODE.search(said)
            exit_code = int(ended[1]) if ended else None
            return BuildError(
                self._written.failed(self._failed_at, file, said, exit_code, self._last)
            )
        if line := _PARSE_ERROR.search(said):
            number = self._written.lines[min(int(line[1]), len(self._written.lines)) - 1]
            return BuildError(f"{file}:{number}: {said[line.end() :].lstrip(': ')}")
        return BuildError(f"{file}: docker buildx failed (exit {code}): {said}")


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Let the command tell the engine to stop, and see that it is gone."""
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TERMINATE_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
