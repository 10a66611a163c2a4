"""OpenCode: uses Chat Completions, prints its events as JSON."""

import json

import msgspec

from plimsoll.agents.command_line.adapter import (
    AGENT_HOME,
    REQUEST_TIMEOUT_SECONDS,
    Launch,
    failure_outcome,
    last_event,
)
from plimsoll.agents.layer.layer import Component, npm_machine
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["OpenCode"]

# On x64 the build without AVX2, which not every host supports.
_BUILDS = {"x64": "linux-x64-baseline", "arm64": "linux-arm64"}


def _component() -> Component:
    return Component(
        "opencode",
        "1.18.33",
        "npm",
        (f"opencode@npm:opencode-{_BUILDS[npm_machine()]}@{{version}}",),
    )


_ENV = {
    "XDG_CONFIG_HOME": f"{AGENT_HOME}/config",
    "XDG_DATA_HOME": f"{AGENT_HOME}/data",
    "XDG_STATE_HOME": f"{AGENT_HOME}/state",
    "XDG_CACHE_HOME": f"{AGENT_HOME}/cache",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


class ErrorData(msgspec.Struct):
    """The message of an error."""

    message: str = ""


class ErrorBody(msgspec.Struct):
    """An error with its type."""

    name: str = ""
    data: ErrorData = msgspec.field(default_factory=ErrorData)


class Failed(msgspec.Struct, tag_field="type", tag="error"):
    """The event of an error that ended the session."""

    error: ErrorBody


class Step(msgspec.Struct):
    """The end of one answer."""

    reason: str = ""


class StepFinish(msgspec.Struct, tag_field="type", tag="step_finish"):
    """The event after one answer and its tool calls."""

    part: Step


_LAST: "msgspec.json.Decoder[Failed | StepFinish]" = msgspec.json.Decoder(Failed | StepFinish)


class OpenCode:
    """`opencode run`, with the instruction on its standard input."""

    name = "opencode"

    @property
    def components(self) -> tuple[Component, ...]:
        return (_component(),)

    def launch(self, access: Access, instruction: str) -> Launch:
        # With a given title it does not ask the policy for one.
        argv = (
            f"{_component().path}/node_modules/opencode/bin/opencode",
            *("run", "--format=json", "--pure", "--title=task", "--print-logs", "--log-level=WARN"),
        )
        config = {"OPENCODE_CONFIG_CONTENT": json.dumps(_config(access))}
        return Launch(argv, {**_ENV, **config}, stdin=instruction.encode())

    def outcome(self, done: ExecResult) -> Outcome | None:
        last = last_event(done, _LAST)
        if isinstance(last, Failed):
            return failure_outcome(done, f"{last.error.name}: {last.error.data.message}")
        if last is None or last.part.reason == "tool-calls":
            return None
        refused = last.part.reason == "content-filter"
        ending = Ending.REFUSED if refused else Ending.SUBMITTED
        return Outcome(ending, exit_code=done.exit_code)


def _config(access: Access) -> dict[str, object]:
    model = f"plimsoll/{access.model}"
    return {
        "model": model,
        "small_model": model,
        "enabled_providers": ["plimsoll"],
        "provider": {
            "plimsoll": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Plimsoll",
                "options": {
                    "baseURL": access.openai,
                    "apiKey": access.key,
                    "timeout": REQUEST_TIMEOUT_SECONDS * 1000,
                },
                "models": {access.model: {"name": access.model}},
            }
        },
        "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny", "question": "deny"},
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "lsp": False,
        "formatter": False,
    }
