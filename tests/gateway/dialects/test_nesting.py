"""JSON that is nested too deeply is treated as invalid JSON, not as an internal error."""

from collections.abc import Callable

import msgspec
import pytest

from plimsoll.agents.command_line.adapter import last_event
from plimsoll.agents.shell import Call, Function, Mistake, fault_of, read_call, with_valid_arguments
from plimsoll.gateway.chat_server.inference_engine import RequestError
from plimsoll.gateway.chat_server.tool_calls import read_calls
from plimsoll.gateway.chat_server.wire_format import read_fields
from plimsoll.gateway.dialects.encoding import sendable_arguments
from plimsoll.gateway.upstreams.answers import StreamReader, read_answer
from plimsoll.gateway.upstreams.failures import UpstreamFailure, failure_from_status
from plimsoll.gateway.upstreams.scripted.byte_tokens import canonical
from plimsoll.gateway.upstreams.scripted.model import run_call
from plimsoll.gateway.upstreams.scripted.request import RequestTool
from plimsoll.sandboxes.output import Captured
from plimsoll.sandboxes.protocol import ExecResult
from plimsoll.trajectories.export.atif import _call as exported
from plimsoll.trajectories.export.rendering import _call as rendered
from plimsoll.trajectories.messages import ToolCall, json_digest

DEEP = '{"more":' * 2000 + "1" + "}" * 2000
CALL = ToolCall("c", "bash", DEEP)
ASKED = Call("c", Function("bash", DEEP))
CALLED = f'<tool_call>{{"name":"bash","arguments":{DEEP}}}</tool_call>'
BODY = f'{{"choices":[],"messages":[],"more":{DEEP}}}'.encode()


def _is_refused(kind: type[Exception], read: Callable[[], object]) -> bool:
    try:
        read()
    except kind:
        return True
    return False


def _printed(text: str) -> ExecResult:
    data = text.encode()
    return ExecResult(0, None, False, Captured(data, b"", len(data)), Captured(b"", b"", 0), 0.0)


READERS: dict[str, Callable[[], bool]] = {
    "the call of an answer, by the shell": lambda: isinstance(read_call(ASKED), Mistake),
    "the call that goes back, by the shell": lambda: (
        with_valid_arguments(ASKED).function.arguments == "{}"
    ),
    "a refusal, by the shell": lambda: fault_of(BODY).message.startswith('{"choices"'),
    "what an agent printed": lambda: last_event(_printed(DEEP), msgspec.json.Decoder()) is None,
    "a call in a text": lambda: read_calls(CALLED) == (CALLED, []),
    "a call for people": lambda: "not a JSON object" in rendered(CALL, full=True).plain,
    "a call for ATIF": lambda: exported(CALL).extra == {"unparsed_arguments": DEEP},
    "the identity of a call": lambda: len(json_digest(DEEP)) == 16,
    "a call for servers": lambda: "_invalid_arguments" in sendable_arguments(DEEP),
    "a whole answer": lambda: _is_refused(UpstreamFailure, lambda: read_answer("there", BODY)),
    "a piece of a stream": lambda: _is_refused(
        UpstreamFailure, lambda: StreamReader("there").read(BODY)
    ),
    "an error of a server": lambda: failure_from_status("there", 500, BODY).kind == "upstream",
    "a request to a server": lambda: _is_refused(RequestError, lambda: read_fields(BODY)),
    "the tokens of a call": lambda: canonical(DEEP) == DEEP,
    "the schema of a tool": lambda: run_call("ls", [RequestTool("bash", _raw(DEEP))]) is None,
}


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


@pytest.mark.parametrize("what", READERS)
def test_deeply_nested_json_is_treated_as_invalid(what: str):
    assert READERS[what]()
