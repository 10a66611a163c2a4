"""A minimal agent with OpenAI's client: Responses, streamed."""

import json
import subprocess
import sys

sys.path.insert(0, sys.argv[1])

from openai import OpenAI

client = OpenAI()
items = [{"role": "user", "content": sys.stdin.read()}]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"type": "function", "name": "bash", "parameters": parameters}
while True:
    with client.responses.stream(model="any", input=items, tools=[tool], store=False) as stream:
        answer = stream.get_final_response()
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    calls = [item for item in answer.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        command = json.loads(call.arguments)["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
print("finished")
