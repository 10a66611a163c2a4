"""mini-swe-agent: uses Chat Completions without streaming, prints plain text."""

import json
import re

from plimsoll.agents.command_line.adapter import (
    AGENT_HOME,
    AGENT_LOGS,
    MAX_RETRIES,
    REQUEST_TIMEOUT_SECONDS,
    Launch,
    failure_outcome,
)
from plimsoll.agents.layer.layer import Component
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.gateway.access import Access
from plimsoll.sandboxes.protocol import ExecResult

__all__ = ["MiniSweAgent"]

_COMPONENT = Component(
    "mini-swe-agent",
    "2.4.6",
    "pip",
    # This litellm imports mcp without depending on it.
    ("mini-swe-agent=={version}", "litellm==1.106.2", "mcp"),
    for_python=True,
)

# Its packages are for itself alone: PYTHONPATH would pass them to its commands, and without -I the
# task's modules would come before its own.
_START = """\
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("minisweagent.run.mini", run_name="__main__", alter_sys=True)
"""
_CONFIG = "plimsoll.yaml"
_ENV = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_GLOBAL_CONFIG_DIR": AGENT_HOME,
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(1 + MAX_RETRIES),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
_EXIT = re.compile(r"^Exit:\n(.*)$", re.MULTILINE)
_BUDGET_EXITS = ("LimitsExceeded", "TimeExceeded")
_NO_CALLS = "RepeatedFormatError"
"""The policy repeatedly answered without a command."""
_ERROR = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exceeded\w*): .+)", re.MULTILINE)


class MiniSweAgent:
    """`mini`, with the instruction in its config."""

    name = "mini-swe-agent"
    components = (_COMPONENT,)

    def launch(self, access: Access, instruction: str) -> Launch:
        config_file = f"{AGENT_HOME}/{_CONFIG}"
        output = f"{AGENT_LOGS}/mini-swe-agent.traj.json"
        python = ("python3", "-I", "-c", _START, _COMPONENT.path)
        argv = (*python, "-c", "mini.yaml", "-c", config_file, "-o", output)
        config = {_CONFIG: json.dumps(_config(access, instruction)).encode()}
        return Launch(argv, {**_ENV, "OPENAI_API_KEY": access.key}, files=config)

    def outcome(self, done: ExecResult) -> Outcome | None:
        output = done.stdout.text
        if done.exit_code and (errors := _ERROR.findall(f"{output}\n{done.stderr.text}")):
            return failure_outcome(done, errors[-1])
        exits = _EXIT.findall(output)
        if not exits:
            return None
        why: str = exits[-1]
        if why in _BUDGET_EXITS:
            return Outcome(Ending.BUDGET, why, done.exit_code)
        return Outcome(detail=why if why == _NO_CALLS else "", exit_code=done.exit_code)


def _config(access: Access, instruction: str) -> dict[str, object]:
    """The config as JSON, which is valid YAML."""
    return {
        "run": {"task": instruction},
        "agent": {"mode": "yolo", "confirm_exit": False, "cost_limit": 0},
        "model": {
            "model_name": f"openai/{access.model}",
            "cost_tracking": "ignore_errors",
            "model_kwargs": {
                "api_base": access.openai,
                "timeout": REQUEST_TIMEOUT_SECONDS,
                "drop_params": True,
            },
        },
    }
