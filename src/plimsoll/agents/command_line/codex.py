"""Codex: uses OpenAI Responses, prints its events as JSON."""

import json

import msgspec

from plimsoll.agents.command_line.adapter import (
    AGENT_HOME,
    MAX_RETRIES,
    REQUEST_TIMEOUT_SECONDS,
    Launch,
    failure_outcome,
    last_event,
)
from plimsoll.agents.layer.layer import Component, npm_machine
from plimsoll.agents.protocol import Outcome
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["Codex"]

# The native program, published as a version of the package.
_COMPONENT = Component(
    "codex", "0.166.0", "npm", ("codex@npm:@openai/codex@{version}-linux-{machine}",)
)
_FOLDERS = {"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}

_KEY = "PLIMSOLL_KEY"

_DISABLED = ("apps", "daemon_auto_start", "goals", "hooks", "image_generation", "multi_agent",
             "plugins", "shell_snapshot", "skill_search", "tool_suggest")  # fmt: skip
"""Features that need the web, a person, or state beyond the trial."""


class Failure(msgspec.Struct):
    """The reason of a failed turn."""

    message: str = ""


class TurnFailed(msgspec.Struct, tag_field="type", tag="turn.failed"):
    """The last event of a failed turn."""

    error: Failure


class TurnCompleted(msgspec.Struct, tag_field="type", tag="turn.completed"):
    """The last event of a completed turn."""


_LAST: "msgspec.json.Decoder[TurnFailed | TurnCompleted]" = msgspec.json.Decoder(
    TurnFailed | TurnCompleted
)


class Codex:
    """`codex exec`, with the instruction on its standard input."""

    name = "codex"
    components = (_COMPONENT,)

    def launch(self, access: Access, instruction: str) -> Launch:
        argv = [
            _program(),
            "exec",
            "--json",
            "--color=never",
            "--skip-git-repo-check",
            "--ephemeral",
            "--dangerously-bypass-approvals-and-sandbox",
        ]
        for key, value in _settings(access).items():
            # JSON strings, numbers and booleans are valid TOML.
            argv += ["-c", f"{key}={json.dumps(value)}"]
        env = {"CODEX_HOME": AGENT_HOME, _KEY: access.key}
        return Launch((*argv, "-"), env, stdin=instruction.encode())

    def outcome(self, done: ExecResult) -> Outcome | None:
        last = last_event(done, _LAST)
        if isinstance(last, TurnFailed):
            return failure_outcome(done, last.error.message)
        return None if last is None else Outcome(exit_code=done.exit_code)


def _program() -> str:
    """The path of its program in a sandbox."""
    return f"{_COMPONENT.path}/node_modules/codex/vendor/{_FOLDERS[npm_machine()]}/bin/codex"


def _settings(access: Access) -> dict[str, str | int | bool]:
    provider = "model_providers.plimsoll"
    return {
        "model": access.model,
        "model_provider": "plimsoll",
        "model_reasoning_summary": "none",
        f"{provider}.name": "Plimsoll",
        f"{provider}.base_url": access.openai,
        f"{provider}.env_key": _KEY,
        f"{provider}.wire_api": "responses",
        f"{provider}.request_max_retries": MAX_RETRIES,
        f"{provider}.stream_max_retries": MAX_RETRIES,
        f"{provider}.stream_idle_timeout_ms": REQUEST_TIMEOUT_SECONDS * 1000,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "web_search": "disabled",
        "skills.bundled.enabled": False,
        **{f"features.{name}": False for name in _DISABLED},
    }
