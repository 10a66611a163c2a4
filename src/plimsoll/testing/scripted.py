"""A policy that answers from a script, in this process or behind an HTTP server.

`--policy scripted:FILE` uses the same scripts.
"""

from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import (
    CallSpec,
    Fault,
    Rule,
    Script,
    Turn,
    load_script,
)
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer, ServerFeatures, serve_script

__all__ = [
    "CallSpec",
    "Fault",
    "Rule",
    "Script",
    "ScriptedPolicy",
    "ScriptedServer",
    "ServerFeatures",
    "Turn",
    "load_script",
    "serve_script",
]
