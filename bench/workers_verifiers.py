"""verifiers' side of `bench_workers.py`, run by the Python of its own environment.

As `server` it is a worker with verifiers' own server for the requests of agents. As `client` it
gives rollouts to that worker, as a trainer would. The agent is the same as for Plimsoll, and also
runs in the worker.
"""

# verifiers is no dependency: `workers_sides.py` installs it on first use.
# pyright: reportMissingImports=false

import asyncio
import gc
import os
import sys
from collections.abc import Iterable

import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.utils.loaders import resolve_env_config

from workers_agent import play

__all__ = ["ChurnHarness", "ChurnTaskset"]

KEY = "PLIMSOLL_BENCH_KEY"


class ChurnConfig(vf.HarnessConfig):
    turns: int = 45
    size: int = 200_000


class ChurnHarness(vf.Harness[ChurnConfig]):
    """The agent, in the worker process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # noqa: ARG002
        await play(endpoint, secret, self.config.turns, self.config.size)
        return ProgramResult(exit_code=0, stdout="", stderr="")


class ChurnTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def done(self) -> float:
        return 1.0


class ChurnTaskset(vf.Taskset[ChurnTask, vf.TasksetConfig]):
    def load(self) -> Iterable[ChurnTask]:
        yield ChurnTask(vf.TaskData(prompt="Look at the images."), self.config.task)


def config(turns: int, size: int):
    name = "workers_verifiers"
    harness = {"id": name, "turns": turns, "size": size}
    agent = {"harness": harness, "runtime": SubprocessConfig()}
    return resolve_env_config({"taskset": {"id": name}, "agent": agent})


async def drive(address: str, policy: str, turns: int, at_once: int) -> None:
    """Read counts of rollouts from standard input, run them, and print a line as each ends."""
    client = EnvClient(address)
    await client.wait_for_server_startup(interval=0.2)
    print("ready", flush=True)
    endpoint = EvalClientConfig(base_url=f"{policy}/v1", api_key_var=KEY)
    free, sampling = asyncio.Semaphore(at_once), vf.SamplingConfig()
    task = vf.TaskData(prompt="Look at the images.", idx=0).model_dump()

    async def one() -> None:
        async with free:
            episode = await client.run(endpoint, "policy", sampling, task)
        errors = [*episode.errors, *(error for t in episode.traces for error in t.errors)]
        made = sum(trace.num_turns for trace in episode.traces)
        if made != turns:
            errors.append(f"{made} turns are recorded, not {turns}")
        print(repr(errors[0]).replace("\n", " ") if errors else "done", flush=True)

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await asyncio.gather(*(one() for _ in range(int(line))))


def main() -> None:
    role, address, policy, *figures = sys.argv[1:]
    turns, size, at_once, collects = map(int, figures)
    os.environ[KEY] = "none"
    if role == "client":
        asyncio.run(drive(address, policy, turns, at_once))
        return
    if not collects:
        gc.disable()
    EnvServer.run_server(config=config(turns, size), address=address, max_concurrent=at_once)


if __name__ == "__main__":
    main()
