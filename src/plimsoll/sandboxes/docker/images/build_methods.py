"""The two ways to run a build: the daemon's classic builder, and `docker buildx` for BuildKit."""

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
    shorten,
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
    """One build by the classic builder. `at` is the instruction in progress."""

    def __init__(self, dockerfile: BuildDockerfile, rendered: RenderedDockerfile) -> None:
        self.at: Instruction | None = None
        self._dockerfile = dockerfile
        self._rendered = rendered
        self._last_output = {"stdout": "", "stderr": ""}
        """The last line printed by the instruction's command, by stream."""

    async def run(
        self,
        daemon: Daemon,
        context: BuildContext,
        tag: str,
        labels: Mapping[str, str],
        emit: OnOutput,
    ) -> None:
        """Build and tag. Raises `BuildError` with the failing line."""
        params = {
            "t": tag,
            "dockerfile": DOCKERFILE,
            "buildargs": msgspec.json.encode(self._dockerfile.args).decode(),
            "rm": "1",
            "forcerm": "1",
        }
        text = self._rendered.labelled(labels)
        try:
            async with (
                tar_stream(lambda tar: context.write(tar, text)) as tar,
                aclosing(daemon.progress("/build", "build", params=params, body=tar)) as lines,
            ):
                async for line in lines:
                    self._read_line(line.stream, emit)
        except DaemonError as error:
            raise self._error(error) from None

    def _read_line(self, text: str, emit: OnOutput) -> None:
        plain = _COLOUR.sub("", text)
        stream = "stdout" if plain == text else "stderr"
        if plain:
            emit(stream, plain.encode())
        if step := _CLASSIC_STEP.match(plain):
            number = int(step[1]) - 1
            steps = self._rendered.steps
            self.at = (steps[number] if number < len(steps) else None) or self.at
            self._last_output = {"stdout": "", "stderr": ""}
        elif plain.strip() and not _CLASSIC_NOTICE.match(plain):
            self._last_output[stream] = plain.strip().splitlines()[-1]

    def _error(self, error: DaemonError) -> BuildError:
        if self.at is None:
            return BuildError(f"{self._dockerfile.file}: {error.reason}")
        last = self._last_output["stderr"] or self._last_output["stdout"]
        return _failure(self.at, self._dockerfile.file, error.reason, error.exit_code, last)


_TERMINATE_SECONDS = 10.0
_MAX_LINE_BYTES = 1 << 16
_BUILDX_STEP = re.compile(r"#(\d+) \[[^]]*\d+/\d+\] (.+)")
_BUILDX_OUTPUT = re.compile(r"#(\d+) \d+\.\d+ (.*\S)")
_BUILDX_STEP_FAILED = re.compile(r"#(\d+) ERROR: (.+)")
_BUILDX_FAILED = re.compile(r"ERROR: (.+)")
_EXIT_CODE = re.compile(r"exit code: (\d+)")
_PARSE_ERROR = re.compile(r"parse error (?:on )?line (\d+)")


@functools.cache
def has_buildx() -> bool:
    """Whether this host has a `docker buildx` command."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        asked = subprocess.run([docker, "buildx", "version"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


class BuildxBuild:
    """One build by buildx, which loads the image into the daemon at the end."""

    def __init__(self, dockerfile: BuildDockerfile, rendered: RenderedDockerfile) -> None:
        self.at: Instruction | None = None
        self._dockerfile = dockerfile
        self._rendered = rendered
        self._steps: dict[str, Instruction] = {}
        self._printed: dict[str, str] = {}
        self._failed_at: Instruction | None = None
        self._error_text = ""
        self._last_output = ""

    async def run(
        self,
        endpoint: Endpoint,
        context: Path,
        dockerfile: Path,
        tag: str,
        labels: Mapping[str, str],
        emit: OnOutput,
    ) -> None:
        """Build, load and tag. Raises `BuildError` with the failing line."""
        with temporary_folder() as folder:
            own = folder / "Dockerfile"
            own.write_text(self._rendered.labelled(labels), "utf-8")
            rules = ignore_file(context, dockerfile)
            if rules.is_file():
                shutil.copy(rules, own.with_name("Dockerfile.dockerignore"))
            words = ["--file", str(own), "--tag", tag]
            words += [f"--build-arg={key}={value}" for key, value in self._dockerfile.args.items()]
            code = await self._follow([*words, str(context)], endpoint, emit)
        if code != 0 and is_full_disk(self._error_text):
            raise full_disk_error(str(endpoint), shorten(self._error_text))
        if code != 0:
            raise self._error(code)

    async def _follow(self, words: list[str], endpoint: Endpoint, emit: OnOutput) -> int:
        # DOCKER_CONTEXT could select another daemon.
        env = {key: value for key, value in os.environ.items() if key != "DOCKER_CONTEXT"}
        process = await asyncio.create_subprocess_exec(
            "docker", "buildx", "build", "--load", "--progress=plain", *words,
            env={**env, **endpoint.environment()},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            rest = b""
            while piece := await process.stdout.read(_MAX_LINE_BYTES):
                emit("stdout", piece)
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-_MAX_LINE_BYTES:]
                for line in lines:
                    self._read_line(line.decode("utf-8", "replace"))
            self._read_line(rest.decode("utf-8", "replace"))
            return await process.wait()
        finally:
            if process.returncode is None:
                await run_to_completion(_terminate(process))

    def _read_line(self, line: str) -> None:
        if step := _BUILDX_STEP.match(line):
            self.at = self._find(step[2]) or self.at
            if self.at is not None:
                self._steps[step[1]] = self.at
        elif printed := _BUILDX_OUTPUT.match(line):
            self._printed[printed[1]] = printed[2]
        elif failed := _BUILDX_STEP_FAILED.match(line):
            # Output of steps that run in parallel may follow.
            self._failed_at = self._steps.get(failed[1], self.at)
            self._error_text, self._last_output = failed[2], self._printed.get(failed[1], "")
        elif failed := _BUILDX_FAILED.match(line):
            self._error_text = self._error_text or failed[1]

    def _find(self, text: str) -> Instruction | None:
        """The instruction of a step, found by its text."""
        text = " ".join(text.split())
        for step in self._rendered.steps:
            if step is not None and text.startswith(f"{step.keyword} "):
                words = " ".join(step.args.split())
                if words[:80] in text:
                    return step
        return None

    def _error(self, code: int) -> BuildError:
        file, text = self._dockerfile.file, shorten(self._error_text)
        if self._failed_at is not None:
            ended = _EXIT_CODE.search(text)
            exit_code = int(ended[1]) if ended else None
            return _failure(self._failed_at, file, text, exit_code, self._last_output)
        if line := _PARSE_ERROR.search(text):
            number = self._rendered.lines[min(int(line[1]), len(self._rendered.lines)) - 1]
            return BuildError(f"{file}:{number}: {text[line.end() :].lstrip(': ')}")
        return BuildError(f"{file}: docker buildx failed (exit {code}): {text}")


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Terminate the command, which cancels the build; kill it if it does not end."""
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _TERMINATE_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _failure(at: Instruction, file: str, reason: str, code: int | None, last: str) -> BuildError:
    """The error of a failed instruction, with its exit code and last output, or with the reason."""
    text = f"{file}:{at.line}: {at.keyword} {' '.join(at.args.split())[:120]}"
    if code is None:
        return BuildError(f"{text}: {reason}")
    return BuildError(f"{text} failed (exit {code}){f': {last[:200]}' if last else ''}")
