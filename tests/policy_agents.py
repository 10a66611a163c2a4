"""An agent that sends requests to a policy, and trials of such agents through a gateway."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers import FinishedTrial, PlainAgent
from plimsoll.agents.protocol import Agent, Assignment, Outcome
from plimsoll.core.errors import AgentError
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.factory import make_upstream
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.openai_server import Timeouts
from plimsoll.gateway.upstreams.protocol import Upstream
from plimsoll.gateway.upstreams.scripted.request import ScriptedRequest
from plimsoll.gateway.upstreams.scripted.script import Script, Turn
from plimsoll.gateway.upstreams.scripted.server import ScriptedServer, ServerFeatures, serve_script
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.task import Task
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import read_trajectory
from plimsoll.trials.policy_session import PolicyAccess
from plimsoll.trials.trial import run_trial

__all__ = [
    "AskingAgent",
    "PolicyTrial",
    "RunTrial",
    "over_http",
    "serve_in_thread",
    "trial_with",
]

ASK = """
import json, os, sys, urllib.error, urllib.request
url, key = os.environ["POLICY_URL"], os.environ["POLICY_KEY"]
words = [word for word in sys.argv[1:] if word != "--stream"]
body = {"model": "m", "messages": [{"role": "user", "content": " ".join(words)}]}
body["stream"] = "--stream" in sys.argv
headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
try:
    said = urllib.request.urlopen(request).read().decode()
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode()[:300])
    sys.exit(4)
if body["stream"]:
    print("[DONE]" in said)
    sys.exit("[DONE]" not in said)
print(json.loads(said)["choices"][0]["message"]["content"])
"""
"""A program that sends one request to the policy, and exits with 4 on an HTTP error."""


class AskingAgent(PlainAgent):
    """An agent that runs a shell script in the sandbox. The script can `ask` the policy.

    With `gives_up` the agent raises an error if the script fails.
    """

    name = "asking"
    version = "1.2"
    needs_policy = True

    def __init__(self, script: str, *, gives_up: bool = False) -> None:
        self._script = script
        self._gives_up = gives_up

    async def run(self, assignment: Assignment) -> Outcome:
        access = assignment.policy
        assert access is not None
        done = await assignment.sandbox.exec(
            f'ask() {{ python3 -c "$ASK" "$@"; }}\n{self._script}',
            env={"ASK": ASK, "POLICY_URL": access.openai, "POLICY_KEY": access.key},
            on_output=assignment.on_output,
        )
        if self._gives_up and not done.ok:
            raise AgentError(f"it gave up: {done.describe()}")
        return Outcome(exit_code=done.exit_code)


@dataclass(frozen=True, slots=True)
class PolicyTrial(FinishedTrial):
    """A finished trial of an agent with a policy."""

    @property
    def trajectory(self) -> Trajectory:
        return read_trajectory(self.folder / "trajectory.jsonl.zst")


RunTrial = Callable[..., Awaitable[PolicyTrial]]


def trial_with(backend: Backend, folder: Path) -> RunTrial:
    """A function that runs a trial of an agent through a gateway to an upstream."""

    async def run(
        task: Task,
        agent: Agent,
        upstream: Upstream,
        limits: Limits | None = None,
        attempt: int = 1,
        longest_pause: float = 600.0,
    ) -> PolicyTrial:
        directory = folder / "trials" / f"{task.name}.{attempt}"
        pauses = upstream.pauses if isinstance(upstream, Gate) else None
        async with Gateway(upstream, pauses=pauses) as gateway:
            result = await run_trial(
                task,
                attempt=attempt,
                agent=agent,
                backend=backend,
                run="test",
                directory=directory,
                policy=PolicyAccess(
                    gateway,
                    limits or Limits(),
                    folder / "blobs",
                    "tiny",
                    longest_pause,
                ),
            )
        return PolicyTrial(result.verdict, directory, result.phases)

    return run


@asynccontextmanager
async def over_http(
    *servers: ScriptedServer, timeouts: Timeouts | None = None, patience: float = 0.3
) -> AsyncGenerator[Upstream]:
    """An upstream of scripted servers. They are not probed; requests wait briefly for them."""
    known = Capabilities(
        url=servers[0].url,
        model="scripted",
        text=True,
        logprobs=True,
        token_ids=True,
        prompt_ids=True,
        streams=True,
        stream_usage=True,
        stream_ids=True,
        tools=True,
        tool_stream_ids=True,
    )
    urls = [server.url for server in servers]
    upstream = await make_upstream(urls, timeouts=timeouts, patience=patience, capabilities=known)
    try:
        yield upstream
    finally:
        await upstream.close()


@contextmanager
def serve_in_thread(
    script: Script | Callable[[ScriptedRequest], Turn | str], offers: ServerFeatures | None = None
) -> Generator[ScriptedServer]:
    """A scripted server in a separate thread, for tests that block while a command uses it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        served = serve_script(script, offers)
        server = asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(60)
        try:
            yield server
        finally:
            left = served.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(left, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
