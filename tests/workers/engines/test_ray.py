"""Workers on Ray: placement, environment variables, secrets, and the death of a node."""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from scripted_environment import order, spec
from supervised import Mark, options

from plimsoll.core.errors import UsageError, WorkerError
from plimsoll.testing.waiting import until
from plimsoll.trials.verdicts import Cause, Graded, Void
from plimsoll.workers.controller.roster import WorkerStatus
from plimsoll.workers.controller.supervisor import Supervisor
from plimsoll.workers.engines.ray import RayEngine, RayOptions
from plimsoll.workers.messages import Result
from ray_nodes import ray_cluster


async def ask(supervisor: Supervisor, ticket: str, task: str) -> str:
    result = await supervisor.run(order(ticket, task))
    assert isinstance(result.verdict, Graded), result
    return result.trajectory


async def test_only_named_variables_reach_workers(
    shared_cluster: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLIMSOLL_EXPORTED", "by the shell")
    engine = RayEngine(RayOptions(address=shared_cluster.address))
    named = spec(environment={"PLIMSOLL_NAMED": "by the run"})
    async with Supervisor(engine, named, number=1) as supervisor:
        assert await ask(supervisor, "a", "variable PLIMSOLL_EXPORTED") == ""
        assert await ask(supervisor, "b", "variable PLIMSOLL_NAMED") == "by the run"


async def test_ray_stores_no_secrets_of_workers(shared_cluster: Any):
    secret = f"hush-{secrets.token_hex(8)}"
    engine = RayEngine(RayOptions(address=shared_cluster.address))
    named = spec(environment={"PLIMSOLL_POLICY_KEY": secret})
    watch = Watch(secret)
    with watch:
        async with Supervisor(engine, named, number=2) as supervisor:
            asked = await ask(supervisor, "a", "variable PLIMSOLL_POLICY_KEY")
            assert asked == secret
            await until(lambda: supervisor.free == 4, 60)
            assert not watch.files(Path(shared_cluster.head_node.get_session_dir_path()))
            assert not [raw for raw in gcs_tables() if secret.encode() in raw]
    assert watch.looks > 10
    assert not watch.seen


class Watch:
    """Searches the command lines of this host for a secret, repeatedly."""

    def __init__(self, secret: str) -> None:
        self.seen: set[str] = set()
        self.looks = 0
        self._secret = secret.encode()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def files(self, folder: Path) -> list[str]:
        """The files in a folder that contain the secret."""
        return [str(file) for file in folder.rglob("*") if self._secret in content(file)]

    def _run(self) -> None:
        # Ray's setup of a process takes only milliseconds.
        while not self._is_over.wait(0.01):
            self.looks += 1
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                if self._secret in (line := content(file)):
                    self.seen.add(line.decode(errors="replace"))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def content(file: Path) -> bytes:
    """The content of a file; empty for a socket, a folder or a deleted file."""
    with contextlib.suppress(OSError):
        if file.is_file():
            return file.read_bytes()
    return b""


def gcs_tables() -> list[bytes]:
    """The tables of the cluster's head, which Ray's dashboard shows."""
    from ray._private.state import state

    accessor = state._connect_and_get_accessor()
    return [*accessor.get_actor_table(None, None), *accessor.get_worker_table()]


async def test_the_run_waits_for_a_slowly_growing_cluster_and_shows_the_wait(
    shared_cluster: Any,
):
    ray_options = RayOptions(address=shared_cluster.address, resources={"slip": 2})
    limit = 60.0
    with contextlib.ExitStack() as stack:
        grow(shared_cluster, stack)
        patient = options(start_within=limit)
        async with Supervisor(
            RayEngine(ray_options), spec(), number=2, options=patient
        ) as supervisor:
            await until(lambda: supervisor.free == 2, limit)
            waits = waiting_worker(supervisor)
            assert (waits.phase, waits.where) == ("starting", "waits for a node with 2 slip")
            expected = r"waiting for Ray to place 1 worker \(needs 2 slip each\) · \d+ s"
            assert re.fullmatch(expected, supervisor.waiting)
            # As if the node came minutes later: the start timeout has not begun.
            pass_time(supervisor, waits.worker, 10 * limit)
            await until(lambda: waiting_worker(supervisor).waited_seconds > 10 * limit + 1)
            grow(shared_cluster, stack)
            await until(lambda: supervisor.free == 4, limit)
            assert supervisor.waiting == ""
            assert {status.worker for status in supervisor.status()} == {"worker-1", "worker-2"}


def grow(cluster: Any, stack: contextlib.ExitStack) -> None:
    """Add a node with room for one worker, until the stack is closed."""
    node = cluster.add_node(num_cpus=1, resources={"slip": 2})
    stack.callback(cluster.remove_node, node)


def waiting_worker(supervisor: Supervisor) -> WorkerStatus:
    (waits,) = [one for one in supervisor.status() if one.where.startswith("waits")]
    return waits


def pass_time(supervisor: Supervisor, worker: str, seconds: float) -> None:
    entry = supervisor._roster.find(worker)
    assert entry is not None
    entry.pass_time(seconds)


async def test_the_start_timeout_begins_when_a_worker_is_placed(shared_cluster: Any):
    engine = RayEngine(RayOptions(address=shared_cluster.address))
    impatient = options(start_within=1.0)
    never = spec("never_ready")
    async with Supervisor(engine, never, number=1, options=impatient) as supervisor:
        with pytest.raises(WorkerError, match=r"it did not answer within 1 s.*start_seconds"):
            await supervisor.wait_ready()


async def test_a_dead_node_costs_time_only(mark: Mark, ray_part: None):
    with ray_cluster() as cluster:
        nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
        engine = RayEngine(RayOptions(address=cluster.address, resources={"CPU": 1}))
        four = spec(concurrency=4)
        async with Supervisor(engine, four, number=3, options=options()) as supervisor:
            await until(lambda: supervisor.free == 12, 120)
            tasks = [
                asyncio.create_task(retry_until_graded(supervisor, f"t{n}")) for n in range(40)
            ]
            await asyncio.sleep(0.5)
            cluster.add_node(num_cpus=2)
            cluster.remove_node(nodes[0], allow_graceful=False)
            tries = await asyncio.gather(*tasks)
            assert max(tries) > 1, "the dead node ran no ticket"
            await until(lambda: supervisor.free == 12, 120)


async def retry_until_graded(supervisor: Supervisor, ticket: str) -> int:
    """Retry a ticket until it is graded, as a run does. Returns the number of attempts."""
    for attempt in range(1, 10):
        result: Result = await supervisor.run(order(f"{ticket}/{attempt}", "sleep 0.5"))
        if isinstance(result.verdict, Graded):
            return attempt
        assert isinstance(result.verdict, Void) and result.verdict.cause is Cause.LOST
    raise AssertionError("the ticket was lost nine times")


async def test_resources_and_labels_place_workers(mark: Mark, ray_part: None):
    with ray_cluster() as cluster:
        plain = cluster.add_node(num_cpus=2)
        chosen = cluster.add_node(num_cpus=2, labels={"pool": "a"}, resources={"berth": 2})
        ray_options = RayOptions(
            address=cluster.address, resources={"berth": 1}, labels={"pool": "a"}
        )
        async with Supervisor(RayEngine(ray_options), spec(), number=2) as supervisor:
            await until(lambda: supervisor.free == 4, 60)
            raylets = {await ask(supervisor, f"t{n}", "variable RAY_RAYLET_PID") for n in range(2)}
            assert raylets == {str(raylet(chosen))} != {str(raylet(plain))}


def raylet(node: Any) -> int:
    (info,) = node.all_processes["raylet"]
    return info.process.pid


async def test_an_unplaceable_worker_is_reported(shared_cluster: Any):
    ray_options = RayOptions(address=shared_cluster.address, resources={"absent": 1})
    expected = "waiting for Ray to place 2 workers (needs 1 absent each)"
    async with Supervisor(RayEngine(ray_options), spec(), number=2) as supervisor:
        await until(lambda: supervisor.waiting.startswith(expected), 60)
        await until(lambda: "no node of the cluster is that large now" in supervisor.waiting, 60)


async def test_auto_finds_the_running_cluster(shared_cluster: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", shared_cluster.address)
    engine = RayEngine(RayOptions(address="auto"))
    async with Supervisor(engine, spec(), number=1) as supervisor:
        await supervisor.wait_ready()
    assert all(node.any_processes_alive() for node in shared_cluster.list_all_nodes())


async def test_a_cluster_started_by_the_run_ends_with_it(mark: Mark, ray_part: None):
    before = mark.processes().keys()
    async with Supervisor(RayEngine(), spec(), number=1) as supervisor:
        await supervisor.wait_ready()
        assert mark.processes().keys() - before
    await until(lambda: not mark.processes().keys() - before, 60)


async def test_a_program_connected_to_ray_stays_connected(shared_cluster: Any):
    import ray

    ray.init(address=shared_cluster.address, log_to_driver=False)
    try:
        async with RayEngine():
            pass
        assert ray.is_initialized()
    finally:
        ray.shutdown()


async def test_ray_does_not_replace_the_sigterm_handler(shared_cluster: Any):
    seen = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, seen.set)
    async with RayEngine(RayOptions(address=shared_cluster.address)):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(seen.wait(), 60)


TERMINATED = """
import asyncio, signal, sys
from plimsoll.workers.engines.ray import RayEngine, RayOptions

async def main():
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(terminated.set))
    async with RayEngine(RayOptions(address=sys.argv[1])):
        print("on it", flush=True)
        await terminated.wait()
        await asyncio.sleep(4)

asyncio.run(main())
"""


async def test_a_terminated_run_is_not_killed_by_ray(shared_cluster: Any):
    command = [sys.executable, "-c", TERMINATED, shared_cluster.address]
    both = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    run = await asyncio.create_subprocess_exec(*command, **both)
    assert run.stdout is not None
    assert await run.stdout.readline() == b"on it\n"
    run.terminate()
    _, errors = await run.communicate()
    assert (run.returncode, errors) == (0, b"")


async def test_an_unreachable_address_is_reported_at_once(ray_part: None):
    with pytest.raises(WorkerError, match=r"127.0.0.1:1 cannot be used.*\n.*ray start"):
        async with RayEngine(RayOptions(address="127.0.0.1:1")):
            pass


REFUSED = """
import asyncio, sys
from plimsoll.core.errors import WorkerError
from plimsoll.workers.engines.ray import RayEngine, RayOptions

async def main():
    try:
        async with RayEngine(RayOptions(address=sys.argv[1])):
            pass
    except WorkerError as error:
        print(error)

asyncio.run(main())
"""


async def test_a_missing_cluster_token_is_reported(
    shared_cluster: Any, monkeypatch: pytest.MonkeyPatch
):
    # In another process: Ray keeps the token that it was first used with.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster" * 2)
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    command = [sys.executable, "-c", REFUSED, shared_cluster.address]
    both = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    run = await asyncio.create_subprocess_exec(*command, **both)
    output, _ = await run.communicate()
    assert f"the Ray cluster {shared_cluster.address} cannot be used" in output.decode()
    assert "RAY_AUTH_MODE=token" in output.decode()
    assert "RAY_AUTH_TOKEN" in output.decode()


async def test_a_missing_ray_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"package ray: pip install 'plimsoll-rl\[ray\]'"):
        async with RayEngine():
            pass
