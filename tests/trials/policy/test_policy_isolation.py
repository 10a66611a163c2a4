"""Isolation of agents: from its sandbox an agent reaches only its own session."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helpers import FinishedTrial, check_graded
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trials.policy_session import PolicyAccess
from plimsoll.trials.trial import run_trial
from policy_agents import AskingAgent

CONNECT = "python3 -c \"import socket; socket.create_connection(('{}', {}), 3)\" 2>/dev/null"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(ScriptedPolicy(lambda request: f"You said {request.last}.")) as gateway:
        yield gateway


@pytest.fixture
def run(gateway: Gateway, backend: Backend, write_task, tmp_path: Path):
    """Run trials of a script through one gateway."""
    task = write_task()

    async def run(script: str, attempt: int = 1) -> FinishedTrial:
        folder = tmp_path / f"trial-{attempt}"
        result = await run_trial(
            task,
            attempt=attempt,
            agent=AskingAgent(script),
            backend=backend,
            run="test",
            directory=folder,
            policy=PolicyAccess(gateway, Limits(), tmp_path / "blobs"),
        )
        return FinishedTrial(result.verdict, folder, result.phases)

    return run


@pytest.mark.every_backend
async def test_a_sandbox_without_a_network_reaches_the_gateway_and_nothing_else(
    run, gateway: Gateway
):
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    port = listening.sockets[0].getsockname()[1]
    own = socket.gethostbyname(socket.gethostname())
    addresses = [("127.0.0.1", port), (own, port), ("127.0.0.1", gateway.port), ("1.1.1.1", 53)]
    tries = "\n".join(
        f"{CONNECT.format(*address)} && echo reached {address}" for address in addresses
    )
    async with listening:
        ran = await run(f"ask hello\n{tries}\ntrue")
    check_graded(ran, 1.0)
    assert ran.read("agent/stdout.txt") == "You said hello.\n"


@pytest.mark.every_backend
async def test_a_trial_cannot_use_the_session_of_another_trial(
    run, gateway: Gateway, tmp_path: Path
):
    other = await gateway.open(tmp_path / "other", blobs=tmp_path / "blobs")
    access = other.access(gateway.port)
    ran = await run(
        f"""
        mine=$POLICY_URL
        ask mine
        POLICY_URL=$(echo $mine | sed 's,/s/[^/]*,/s/{other.id},') ask other-session
        POLICY_KEY={access.key} ask other-key
        POLICY_URL=$(echo $mine | sed 's,/s/[^/]*,/s/nobody,') ask nobody
        true
        """
    )
    check_graded(ran, 1.0)
    output = ran.read("agent/stdout.txt").splitlines()
    assert output[0] == "You said mine."
    assert [line[:4] for line in output[1:]] == ["401 "] * 3
    assert len(set(output[1:])) == 1, "missing sessions and those of others look the same"
    assert other.exchanges == 0
    assert ran.file.ends["main"].turns == 1


async def test_concurrent_trials_have_their_own_sessions(run):
    first, second = await asyncio.gather(
        run("ask one; echo $POLICY_KEY; echo $POLICY_URL", 1),
        run("ask two; echo $POLICY_KEY; echo $POLICY_URL", 2),
    )
    output = [ran.read("agent/stdout.txt").splitlines() for ran in (first, second)]
    assert [lines[0] for lines in output] == ["You said one.", "You said two."]
    assert output[0][1] != output[1][1]
    assert output[0][2].split("/s/")[1] != output[1][2].split("/s/")[1]
    assert [ran.file.ends["main"].turns for ran in (first, second)] == [1, 1]


async def test_processes_of_the_agent_cannot_use_the_policy_during_grading(
    run, gateway: Gateway, write_task
):
    ran = await run("ask mine; (sleep 0.2; ask later; ask later) & true")
    assert ran.file.ends["main"].turns == 1
    assert not len(gateway.sessions)


async def test_the_gateway_of_a_run_has_no_admin_calls(run):
    ran = await run(
        """
        ask mine
        root=${POLICY_URL%%/s/*}
        for path in /sessions /metrics /healthz /; do
            POLICY_PATH=$root$path python3 -c "
import os, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(os.environ['POLICY_PATH']).status)
except urllib.error.HTTPError as error:
    print(error.code)"
        done
        """
    )
    assert ran.read("agent/stdout.txt").splitlines()[1:] == ["404"] * 4
