"""A minimal agent with Anthropic's client: Messages, streamed."""

import subprocess
import sys

sys.path.insert(0, sys.argv[1])

from anthropic import Anthropic

client = Anthropic()
messages = [{"role": "user", "content": sys.stdin.read()}]
schema = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"name": "bash", "input_schema": schema}
asked = {"model": "any", "messages": messages, "tools": [tool]}
assert client.messages.count_tokens(**asked).input_tokens > 0
while True:
    with client.messages.stream(**asked, max_tokens=1000) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    calls = [block for block in answer.content if block.type == "tool_use"]
    if not calls:
        break
    results = []
    for call in calls:
        command = call.input["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
    messages.append({"role": "user", "content": results})
print("finished")
