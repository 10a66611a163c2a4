"""A build by the engine's own, classic builder."""

import re
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.docker.build_context import DOCKERFILE, BuildContext
from plimsoll.sandboxes.docker.dockerfiles import Recipe, Written
from plimsoll.sandboxes.docker.engine import Engine
from plimsoll.sandboxes.docker.errors import EngineError
from plimsoll.sandboxes.docker.tars import made_in_a_thread
from plimsoll.sandboxes.protocol import OnOutput
from plimsoll.tasks.dockerfile import Instruction

__all__ = ["ClassicBuild"]

_STEP = re.compile(r"Step (\d+)/\d+ : ")
_OWN_WORDS = re.compile(r"\s*(---> |Step \d+/\d+ : |Removing intermediate container )")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ClassicBuild:
    """One build; knows at any time which instruction is being worked on."""

    def __init__(self, recipe: Recipe, written: Written) -> None:
        self.at: Instruction | None = None
        self._recipe = recipe
        self._written = written
        self._last = {"stdout": "", "stderr": ""}
        """The last line that the instruction's command printed."""

    async def run(
        self,
        engine: Engine,
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
                made_in_a_thread(lambda tar: context.write(tar, text)) as tar,
                aclosing(engine.progress("/build", "build", params=params, body=tar)) as lines,
            ):
                async for told in lines:
                    self._told(told.stream, say)
        except EngineError as error:
            raise self._error(error) from None

    def _told(self, text: str, say: OnOutput) -> None:
        plain = _COLOUR.sub("", text)
        stream = "stdout" if plain == text else "stderr"
        if plain:
            say(stream, plain.encode())
        if step := _STEP.match(plain):
            number = int(step[1]) - 1
            steps = self._written.steps
            self.at = (steps[number] if number < len(steps) else None) or self.at
            self._last = {"stdout": "", "stderr": ""}
        elif plain.strip() and not _OWN_WORDS.match(plain):
            self._last[stream] = plain.strip().splitlines()[-1]

    def _error(self, error: EngineError) -> BuildError:
        if self.at is None:
            return BuildError(f"{self._recipe.file}: {error.said}")
        last = self._last["stderr"] or self._last["stdout"]
        file, code = self._recipe.file, error.exit_code
        return BuildError(self._written.failed(self.at, file, error.said, code, last))
