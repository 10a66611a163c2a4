"""verl's own agent loop workers run trials, and get the tokens of verl's own servers."""

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from outside_files import read_rows, write_config
from pydantic import BaseModel
from recording_parts import assistant, talking, user
from tiny_model import make_model

from parts import need
from plimsoll.core.endings import Ending
from plimsoll.core.errors import TrainingError, UsageError
from plimsoll.integrations import verl as adapter
from plimsoll.integrations import verl_engine
from plimsoll.runs.files.results import Row
from plimsoll.trials.verdicts import Cause

pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of verl and its dependencies are ignored."""

PARTS = (
    "verl==0.9.1 tensordict==0.10.0 pyvers cloudpickle hydra-core omegaconf"
    " antlr4-python3-runtime==4.9.3 codetiming orjson cachetools uvicorn fastapi starlette"
)
"""verl and the imports of its agent loop: its requirements pin older versions than ours."""


@pytest.fixture
def world() -> ModuleType:
    is_there = importlib.util.find_spec("verl") is not None
    need("verl", None if is_there else f"it is not installed: pip install --no-deps {PARTS}")
    return importlib.import_module("verl_world")


@pytest.fixture
async def worker(world: ModuleType, tmp_path: Path, home: Path) -> AsyncIterator[Any]:
    model = make_model(tmp_path / "model")
    yield world.make_worker(model, write_config(tmp_path, home, "touch", "broken"), tmp_path)
    await adapter.close()


async def test_a_batch_of_verl_holds_the_tokens_of_its_servers_and_the_verdicts(world, worker):
    made = await worker.generate_sequences(world.batch_of("touch", "touch"))
    sequences = worker.llm_client.sequences
    for row in range(2):
        seen = made.batch["attention_mask"][row].bool()
        ids = made.batch["input_ids"][row][seen].tolist()
        assert ids in sequences
        mask = made.batch["response_mask"][row].tolist()
        trained = [t for t, m in zip(made.batch["responses"][row].tolist(), mask, strict=True) if m]
        assert worker.tokenizer.decode(trained) == "".join(world.ANSWERS)
        logprobs = made.batch["rollout_log_probs"][row].tolist()
        assert logprobs == pytest.approx([-0.5 if m else 0.0 for m in mask])
    assert made.batch["rm_scores"].sum(dim=1).tolist() == [1.0, 1.0]
    assert made.non_tensor_batch["__num_turns__"].tolist() == [4, 4]
    assert made.non_tensor_batch["min_global_steps"].tolist() == [world.STEP, world.STEP]
    assert {asked["temperature"] for asked in worker.llm_client.asked} == {0.7}


async def test_a_void_sample_raises_and_never_has_a_score(world, worker, tmp_path):
    with pytest.raises(TrainingError, match=r"broken is void \(grader: "):
        await worker.generate_sequences(world.batch_of("broken"))
    (folder,) = [file.parent for file in tmp_path.glob("*/results.jsonl")]
    assert [row.reward for row in read_rows(folder)] == [None, None]


async def test_a_trainer_that_stops_at_void_trials_is_reported_at_the_start(world, worker, caplog):
    adapter._warn_of_voids.cache_clear()
    for _ in range(2):
        await world.loop_of(worker).run({}, task="touch")
    (warning,) = [record.message for record in caplog.records if "stays void" in record.message]
    assert "use a V1 trainer: trainer.use_v1=True" in warning
    caplog.clear()
    adapter._warn_of_voids.cache_clear()
    await world.loop_of(worker).run({}, task="touch", session_id=0, uid="u")
    assert "stays void" not in caplog.text


@pytest.mark.parametrize("buffer", ["ReplayBuffer", "ReplayBufferAsync"])
async def test_a_void_session_does_not_discard_its_group_in_the_v1_trainers(world, worker, buffer):
    v1 = world.V1(worker)
    assert await v1.run_group("u", "touch", "broken", "touch") == "finished"
    assert v1.sample(buffer, 1) == (["u_0", "u_2"], 0)


async def test_a_group_without_a_grade_is_replaced_by_the_v1_trainers(world, worker):
    v1 = world.V1(worker)
    assert await v1.run_group("void", "broken", "broken") == "failure"
    assert await v1.run_group("fine", "touch", "touch") == "finished"
    assert v1.sample("ReplayBufferAsync", 1) == (["fine_0", "fine_1"], 1)


@pytest.mark.parametrize(("estimator", "is_masked"), [("grpo", True), ("gae", False)])
async def test_a_single_graded_member_is_not_trained_on_against_a_baseline(
    world, worker, estimator, is_masked
):
    worker.config.algorithm.adv_estimator = estimator
    runs = [
        world.loop_of(worker).run({}, task=task, session_id=n, uid="u")
        for n, task in enumerate(("touch", "broken"))
    ]
    (output,), nothing = await asyncio.gather(*runs)
    assert nothing == []
    assert output.reward_score == 1.0
    assert any(output.response_mask) is not is_masked
    assert (output.extra_fields["plimsoll_left_out"] > 0) is is_masked


async def test_a_session_of_the_v1_trainer_gets_all_branches(world, worker):
    columns = {"task": "touch", "session_id": 0, "uid": "u"}
    loop = world.loop_of(worker)
    outputs = await loop.run({"temperature": 1.0, "logprobs": False}, **columns)
    assert [output.reward_score for output in outputs] == [1.0]
    assert outputs[0].response_logprobs is None
    assert outputs[0].as_dict()["rm_scores"].sum() == 1.0


async def test_generated_tokens_beyond_the_response_are_counted_and_logged(world, worker, caplog):
    worker.config.actor_rollout_ref.rollout.response_length = 40
    (output,) = await world.loop_of(worker).run({}, task="touch", session_id=0, uid="u")
    assert len(output.response_ids) == 40
    generated = sum(len(worker.tokenizer(text).input_ids) for text in world.ANSWERS)
    assert output.extra_fields["plimsoll_left_out"] == generated - sum(output.response_mask) > 0
    assert caplog.text.count("rollout.response_length = 40") == 1


async def test_a_row_without_a_task_and_a_prompt_without_room_are_named(world, worker):
    with pytest.raises(UsageError, match="give it a column `task`"):
        await world.loop_of(worker).run({})
    worker.config.actor_rollout_ref.rollout.prompt_length = 10
    worker.config.actor_rollout_ref.rollout.response_length = 1790
    with pytest.raises(UsageError, match=r"rollout\.prompt_length is 10: raise it"):
        await world.loop_of(worker).run({}, task="touch")


async def test_an_unsupported_verl_version_is_named(world, worker, monkeypatch):
    monkeypatch.setattr(verl_engine, "_FIELDS", {"prompt_ids", "thoughts"})
    with pytest.raises(UsageError, match=r"verl \S+ has other agent loops than 0.9.1: no thoughts"):
        world.loop_of(worker)


class AgentLoopMetrics(BaseModel):
    """The part of verl's class of this name that Plimsoll sets."""

    generate_sequences: float


class AgentLoopOutput(BaseModel):
    """The part of verl's class of this name that Plimsoll sets."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None
    reward_score: float | None
    num_turns: int
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any]


class VerdictTrials:
    """Trials whose verdicts are known: `touch` has the reward 1, `broken` is void."""

    def __init__(self, trajectory: str) -> None:
        self._trajectory = trajectory

    async def __aenter__(self) -> "VerdictTrials":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def run(self, task: str, _: str) -> Row:
        graded = task == "touch"
        return Row(
            task=task,
            attempt=1,
            verdict="graded" if graded else "void",
            reward=1.0 if graded else None,
            rewards={} if graded else None,
            ending=Ending.SUBMITTED,
            cause=None if graded else Cause.GRADER,
            reason=None if graded else "no reward was written",
            seconds=0.5,
            trajectory=self._trajectory,
        )


MakeLoop = Callable[..., adapter.PlimsollAgentLoop]


@pytest.fixture
async def loop_of(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeLoop]:
    """Makes agent loops over trials with known verdicts; without verl, with the outputs above."""
    module = "verl.experimental.agent_loop.agent_loop"
    if importlib.util.find_spec("verl") is None:
        loops = SimpleNamespace(AgentLoopOutput=AgentLoopOutput, AgentLoopMetrics=AgentLoopMetrics)
        monkeypatch.setitem(sys.modules, module, loops)
        installed = tmp_path / "verl-0.9.1.dist-info/METADATA"
        installed.parent.mkdir()
        installed.write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n")
        monkeypatch.syspath_prepend(tmp_path)
    for talk in talking(tmp_path / "recorded"):
        talk.ask(user("Go."), answer=assistant("Gone."))
        await talk.close()
    (trajectory,) = tmp_path.glob("recorded/trial/*.zst")
    monkeypatch.setattr(adapter, "Trials", lambda *_, **__: VerdictTrials(str(trajectory)))
    config = write_config(tmp_path, home, "touch", "broken")
    rollout = SimpleNamespace(prompt_length=1000, response_length=1000)
    tokenizer = SimpleNamespace(eos_token_id=3, chat_template="", decode=lambda *_, **__: "")

    def make(estimator: str = "grpo") -> adapter.PlimsollAgentLoop:
        settings = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=rollout),
            algorithm=SimpleNamespace(adv_estimator=estimator),
        )
        loop: Any = adapter.PlimsollAgentLoop
        return loop(str(config), SimpleNamespace(config=settings), None, tokenizer)

    yield make
    await adapter.close()


async def run_session(loop_of: MakeLoop, *tasks: str, estimator: str = "grpo") -> list[Any]:
    """The outputs of each member of a group, or its error."""
    runs = [
        loop_of(estimator).run({"logprobs": True}, task=task, session_id=n, uid="u")
        for n, task in enumerate(tasks)
    ]
    return await asyncio.gather(*runs, return_exceptions=True)


async def test_a_void_trial_raises_and_a_graded_one_has_its_reward_and_tokens(loop_of):
    with pytest.raises(TrainingError, match=r"broken is void \(grader: no reward was written\)"):
        await loop_of().run({}, task="broken")
    output: Any = await loop_of().run({"logprobs": True}, task="touch")
    assert output.reward_score == 1.0
    assert len(output.response_ids) == sum(output.response_mask) == len("Gone.") + 1
    assert output.response_logprobs == [-0.5] * len(output.response_ids)


async def test_a_void_member_has_no_output_and_the_others_keep_theirs(loop_of):
    first, void, last = await run_session(loop_of, "touch", "broken", "touch")
    assert void == []
    for (output,) in (first, last):
        assert output.reward_score == 1.0
        assert any(output.response_mask)
    assert adapter._groups == {}


async def test_every_member_of_a_group_without_a_grade_raises(loop_of):
    for outcome in await run_session(loop_of, "broken", "broken"):
        assert isinstance(outcome, TrainingError)
        assert "broken is void" in str(outcome)


@pytest.mark.parametrize(("estimator", "is_masked"), [("grpo", True), ("gae", False)])
async def test_the_only_graded_member_is_masked_if_the_estimator_compares_members(
    loop_of, estimator, is_masked
):
    (output,), nothing = await run_session(loop_of, "touch", "broken", estimator=estimator)
    assert nothing == []
    assert output.reward_score == 1.0
    assert any(output.response_mask) is not is_masked
    assert (output.extra_fields["plimsoll_left_out"] > 0) is is_masked


async def test_a_failed_start_of_the_services_is_repeated_once_for_all_samples(
    loop_of, monkeypatch
):
    starts: list[int] = []
    enter = VerdictTrials.__aenter__

    async def fails_once(trials: VerdictTrials) -> VerdictTrials:
        starts.append(len(starts))
        await asyncio.sleep(0)
        if starts == [0]:
            raise TrainingError("no port is free")
        return await enter(trials)

    monkeypatch.setattr(VerdictTrials, "__aenter__", fails_once)

    async def sample() -> Any:
        try:
            return await loop_of().run({}, task="touch")
        except TrainingError:
            return await loop_of().run({}, task="touch")

    outputs = await asyncio.gather(*(sample() for _ in range(3)))
    assert [output.reward_score for output in outputs] == [1.0] * 3
    assert starts == [0, 1]


def test_without_verl_the_message_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.agent_loop", None)
    with pytest.raises(UsageError, match=r"there is no agent loop of verl: install verl 0\.9\.1"):
        adapter.PlimsollAgentLoop("night.toml", None, None, None)
