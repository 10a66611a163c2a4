"""A minimal agent with OpenAI's client: Chat Completions, streamed."""

import json
import subprocess
import sys

sys.path.insert(0, sys.argv[1])

from openai import OpenAI

client = OpenAI()
messages = [{"role": "user", "content": sys.stdin.read()}]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"type": "function", "function": {"name": "bash", "parameters": parameters}}
while True:
    with client.chat.completions.stream(model="any", messages=messages, tools=[tool]) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        command = json.loads(call.function.arguments)["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
assert any(model.id == "policy" for model in client.models.list())
print("finished")
