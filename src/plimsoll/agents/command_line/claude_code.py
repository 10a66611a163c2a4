"""Claude Code: uses Anthropic Messages, prints its events as JSON."""

import msgspec

from plimsoll.agents.command_line.adapter import (
    AGENT_HOME,
    MAX_RETRIES,
    REQUEST_TIMEOUT_SECONDS,
    Launch,
    failure_outcome,
    last_event,
)
from plimsoll.agents.layer.layer import Component
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["ClaudeCode"]

# The native program, without the wrapper that needs Node.js.
_COMPONENT = Component(
    "claude-code",
    "2.1.325",
    "npm",
    ("claude-code@npm:@anthropic-ai/claude-code-linux-{machine}@{version}",),
)

# The tools for files and commands. The others need the web, a person, or a schedule beyond the
# trial.
_TOOLS = "Bash,Edit,Read,Write,Glob,Grep,NotebookEdit,Agent"
_SETTINGS = '{"attribution":{"commit":"","pr":""}}'

_ENV = {
    "CLAUDE_CONFIG_DIR": AGENT_HOME,
    # As root it skips permission prompts only if this is set.
    "IS_SANDBOX": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_MAX_RETRIES": str(MAX_RETRIES),
    "API_TIMEOUT_MS": str(REQUEST_TIMEOUT_SECONDS * 1000),
}


class Result(msgspec.Struct, tag_field="type", tag="result"):
    """The last event."""

    subtype: str = ""
    is_error: bool = False
    result: str = ""
    stop_reason: str | None = None
    errors: list[str] = []


_LAST = msgspec.json.Decoder(Result)


class ClaudeCode:
    """`claude --print`, with the instruction on its standard input."""

    name = "claude-code"
    components = (_COMPONENT,)

    def launch(self, access: Access, instruction: str) -> Launch:
        argv = (
            f"{_COMPONENT.path}/node_modules/claude-code/claude",
            "--print",
            "--verbose",  # without it there are no events
            "--output-format=stream-json",
            "--dangerously-skip-permissions",
            "--no-session-persistence",
            "--strict-mcp-config",
            "--disable-slash-commands",
            f"--settings={_SETTINGS}",
            f"--tools={_TOOLS}",
        )
        model = dict.fromkeys(
            ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
            access.model,
        )
        access_env = {"ANTHROPIC_BASE_URL": access.anthropic, "ANTHROPIC_API_KEY": access.key}
        return Launch(argv, {**_ENV, **model, **access_env}, stdin=instruction.encode())

    def outcome(self, done: ExecResult) -> Outcome | None:
        last = last_event(done, _LAST)
        if last is None:
            return None
        if last.stop_reason == "refusal":
            return Outcome(Ending.REFUSED, last.result[:500], done.exit_code)
        if last.subtype.startswith("error_max"):
            return Outcome(Ending.BUDGET, last.subtype, done.exit_code)
        if last.is_error:
            return failure_outcome(done, last.result or "; ".join(last.errors) or last.subtype)
        return Outcome(exit_code=done.exit_code)
