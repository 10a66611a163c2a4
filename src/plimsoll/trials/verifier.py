"""Verifier: grades a step. It uploads the tests, runs them, saves their output, and judges.

Invariants:

* Before the tests are uploaded, all processes of the agent are dead and /logs/verifier is empty.
* The tests are those of the task: they replace the contents of /tests, and their digest is
  stored with the verdict.
* The reward is read from files just downloaded from the sandbox into a new folder; a file that
  already exists on this host is never used.
* After grading, all processes of the tests are dead, and /tests and /logs/verifier are empty:
  the agent's next step sees neither the tests nor their output.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from plimsoll.core.endings import Ending
from plimsoll.core.errors import NoRoom, SetUpError, TaskError, TransferError
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.protocol import Backend, ExecResult, Sandbox, Supplies
from plimsoll.sandboxes.scripts import has_carriage_returns, script_argv
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.tasks.folder_digest import digest_folders
from plimsoll.tasks.task import Step, Task
from plimsoll.trials.artifacts import Bounds, copy_artifacts
from plimsoll.trials.full_disk import FullDiskCheck
from plimsoll.trials.judge import Grading, judge
from plimsoll.trials.record import StepRecord, TrialRecord
from plimsoll.trials.rewards import RESULT_FILES
from plimsoll.trials.sandbox_request import sandbox_spec, task_env, verifier_image_source
from plimsoll.trials.verdicts import Cause, Evidence, Verdict, Void

__all__ = ["LOGS", "Verifier"]

TESTS = "/tests"
LOGS = "/logs/verifier"
_MAX_LOG_BYTES = 64 << 20
_MAX_LOG_FILES = 20_000
_MAX_RESULT_BYTES = 1 << 20
_MAX_OUTPUT_BYTES = 1 << 20
_WORLD_WRITABLE = 0o777


class Verifier:
    """Grades the steps of one trial."""

    def __init__(
        self,
        task: Task,
        backend: Backend,
        labels: Labels,
        record: TrialRecord,
        supplies: Supplies,
        digests: dict[str, str],
        full_disk: FullDiskCheck,
        bounds: Bounds,
    ) -> None:
        self._task = task
        self._backend = backend
        self._labels = labels
        self._record = record
        self._supplies = supplies
        self._digests = digests
        self._full_disk = full_disk
        self._bounds = bounds

    async def grade(
        self, step: Step, sandbox: Sandbox, record: StepRecord, ending: Ending
    ) -> Verdict:
        """Grade the work in the sandbox. The agent's processes must be dead."""
        broken = self._broken_script(step)
        if broken is not None:
            return broken
        await self._collect(step, sandbox)
        if not step.separate_verifier:
            return await self._grade_in(sandbox, step, record, ending)
        own = await self._separate_sandbox(step)
        try:
            record.write_notes(
                await copy_artifacts(step, sandbox, record.artifacts, self._bounds, into=own)
            )
            return await self._grade_in(own, step, record, ending)
        finally:
            await self._record.close(own)

    def _broken_script(self, step: Step) -> Void | None:
        script = step.test_script
        if script is None:
            return Void(Cause.TASK, "the task has no tests/test.sh, so nothing can grade it")
        if has_carriage_returns(script):
            where = script.relative_to(self._task.path)
            return Void(
                Cause.TASK,
                f"{where} has Windows line endings (CRLF), which no shell can run",
                (Evidence("CRLF line endings", f"{where}:1"),),
            )
        return None

    async def _collect(self, step: Step, sandbox: Sandbox) -> None:
        """Run the `verifier.collect` hooks in the agent's sandbox, before the tests enter."""
        await sandbox.set_network(step.verifier_network)
        for hook in step.verifier.collect:
            if hook.service != "main":
                raise SetUpError(
                    f"verifier.collect needs the service {hook.service!r}; "
                    f"the {self._backend.name} backend has only main"
                )
            done = await sandbox.exec(hook.command, user=hook.user, timeout=hook.timeout_sec)
            if not done.ok:
                raise SetUpError(f"verifier.collect command {hook.command!r} {done.complaint()}")
        if step.verifier.collect:
            await sandbox.kill_all()

    async def _separate_sandbox(self, step: Step) -> Sandbox:
        image = await self._backend.build(
            verifier_image_source(self._task, step, self._supplies),
            on_output=self._record.build_log,
        )
        environment = step.verifier_environment or self._task.environment
        spec = sandbox_spec(
            self._task, environment, step.verifier_network, self._labels, self._supplies
        )
        return await self._backend.create(image, spec)

    async def _grade_in(
        self, sandbox: Sandbox, step: Step, record: StepRecord, ending: Ending
    ) -> Verdict:
        await sandbox.set_network(step.verifier_network)
        await self._upload_tests(step, sandbox)
        cwd = await _working_folder(sandbox)
        before = await sandbox.status()
        done = await self._run_tests(step, sandbox, cwd)
        record.save_output("verifier", done)
        await sandbox.kill_all()
        after = await sandbox.status()
        self._full_disk.update(after)
        memory_kills = (after.oom_kills or 0) - (before.oom_kills or 0)
        files = await self._download_logs(sandbox, record.verifier_folder)
        await sandbox.empty(TESTS)
        await sandbox.empty(LOGS, mode=_WORLD_WRITABLE)
        grading = Grading(
            exit_code=done.exit_code,
            signal=done.signal,
            timed_out=done.timed_out,
            timeout=step.verifier.timeout_sec,
            stdout=done.stdout.text,
            stderr=done.stderr.text,
            files=files,
            instruction=step.instruction,
            reward_range=self._task.reward_range,
            unknown_keys=tuple(key.describe() for key in self._task.unknown_keys),
        )
        # Searching a megabyte of output takes a while; the loop serves other trials.
        verdict = await asyncio.to_thread(judge, grading, ending)
        return _blame_memory(verdict, memory_kills, self._task)

    async def _upload_tests(self, step: Step, sandbox: Sandbox) -> None:
        self._digests[step.name] = digest_folders(step.tests_dirs)
        await sandbox.empty(LOGS, mode=_WORLD_WRITABLE)
        await sandbox.empty(TESTS)
        for folder in step.tests_dirs:
            uploaded = await sandbox.upload(folder, TESTS)
            if uploaded.skipped:
                raise TaskError(f"{folder}: cannot be uploaded: {'; '.join(uploaded.skipped)}")

    async def _run_tests(self, step: Step, sandbox: Sandbox, cwd: str) -> ExecResult:
        assert step.test_script is not None
        return await sandbox.exec(
            script_argv(step.test_script, f"{TESTS}/test.sh"),
            cwd=cwd,
            env=task_env(step.verifier.env, self._task.file, "verifier.env"),
            user=step.verifier.user,
            timeout=step.verifier.timeout_sec,
            keep=_MAX_OUTPUT_BYTES,
        )

    async def _download_logs(self, sandbox: Sandbox, folder: Path) -> dict[str, bytes]:
        """Save /logs/verifier, and return the files at its top level by name.

        Only result files are read; others, which may be many and sparse, are returned empty. If
        the folder is too large or was replaced, only the result files are downloaded; if they are
        missing, there is no reward.
        """
        downloaded, logs = folder / f".logs-{short_id()}", folder / "logs"
        try:
            await sandbox.download(LOGS, downloaded, limit=_MAX_LOG_BYTES, entries=_MAX_LOG_FILES)
        except NoRoom:
            raise  # this host's disk is full, which says nothing about the grader
        except TransferError:
            for name in RESULT_FILES:
                with contextlib.suppress(TransferError):
                    target = downloaded / name
                    await sandbox.download(f"{LOGS}/{name}", target, limit=_MAX_RESULT_BYTES)
        files = await asyncio.to_thread(_top_level_files, downloaded)
        if os.path.lexists(logs):  # left by an unknown process
            await asyncio.to_thread(remove_folder, logs)
        if os.path.lexists(downloaded):
            downloaded.rename(logs)
        return files


def _top_level_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name, with the content of result files."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink():
            files[path.name] = _first_bytes(path) if path.name in RESULT_FILES else b""
    return files


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_RESULT_BYTES)


async def _working_folder(sandbox: Sandbox) -> str:
    """Return the working directory of the tests; create it if the agent removed it."""
    done = await sandbox.exec(["mkdir", "-p", sandbox.workdir], cwd="/", user="root")
    return sandbox.workdir if done.ok else "/"


def _blame_memory(verdict: Verdict, kills: int, task: Task) -> Verdict:
    """Void the verdict if the kernel killed the grader for memory, unless the reward is above 0."""
    if not kills or (verdict.verdict == "graded" and verdict.reward > 0):
        return verdict
    limit = task.environment.memory_mb
    reason = (
        f"the kernel killed {kills} process(es) of the grader for memory "
        f"(limit {limit} MB, environment.memory_mb)"
    )
    return Void(Cause.SANDBOX, reason, verdict.evidence, verdict.ending)
