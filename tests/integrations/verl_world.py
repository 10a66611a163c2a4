"""verl with a scripted server. Imported only if verl is installed."""

import importlib
import importlib.util
import json
import sys
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

with warnings.catch_warnings():
    # Warnings of verl and its dependencies are ignored.
    warnings.simplefilter("ignore")
    import numpy as np
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopWorker,
        DictConfigWrap,
        _agent_loop_registry,
    )
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

from plimsoll.integrations.verl import PlimsollAgentLoop

__all__ = ["ANSWERS", "STEP", "V1", "batch_of", "loop_of", "make_worker"]

ANSWERS = ("```bash\ntouch /app/done\n```<|end|>", "Done.<|end|>")
STEP = 3


class Client(LLMServerClient):
    """verl's own client, with one scripted server."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        super().__init__(config)
        self.sequences: list[list[int]] = []
        self.asked: list[dict[str, Any]] = []
        self._answers = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ANSWERS]

    async def _acquire_server(self, *_: Any, **__: Any) -> Any:
        return "0", SimpleNamespace(generate=SimpleNamespace(remote=self._generate))

    def _release_server(self, *_: Any, **__: Any) -> None:
        pass

    async def _generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any):
        has_done = _contains(prompt_ids, self._answers[0][:-1])
        ids = self._answers[has_done][: sampling_params["max_tokens"]]
        self.asked.append(sampling_params)
        self.sequences.append([*prompt_ids, *ids])
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"global_steps": STEP},
        )


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


def make_worker(model: Path, config: Path, folder: Path) -> AgentLoopWorker:
    """verl's worker of agent loops, with Plimsoll's among them."""
    loops = folder / "loops.yaml"
    target = "plimsoll.integrations.verl.PlimsollAgentLoop"
    known = {"name": "plimsoll", "_target_": target, "config": str(config), "out": str(folder)}
    loops.write_text(json.dumps([known]))
    with initialize_config_module("verl.trainer.config", version_base=None):
        whole = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.prompt_length=1500",
                "actor_rollout_ref.rollout.response_length=300",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                "actor_rollout_ref.rollout.temperature=0.7",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
            ],
        )
    made = AgentLoopWorker(whole, llm_client=None)
    made.llm_client = Client(whole, made.tokenizer)
    return made


def batch_of(*tasks: str) -> DataProto:
    def column(values: list[Any]) -> np.ndarray:
        made = np.empty(len(values), dtype=object)
        made[:] = values
        return made

    columns = {
        "raw_prompt": column([[{"role": "user", "content": task}] for task in tasks]),
        "task": column(list(tasks)),
        "agent_name": column(["plimsoll"] * len(tasks)),
        "index": np.arange(len(tasks)),
    }
    return DataProto(batch=None, non_tensor_batch=columns)


def loop_of(worker: AgentLoopWorker) -> PlimsollAgentLoop:
    """An agent loop as the worker makes one."""
    return PlimsollAgentLoop(
        config=_agent_loop_registry["plimsoll"].config,
        out=_agent_loop_registry["plimsoll"].out,
        trainer_config=DictConfigWrap(worker.config),
        server_manager=worker.llm_client,
        tokenizer=worker.tokenizer,
    )


class _Queue(ModuleType):
    """verl's TransferQueue, in memory: the real one is a service on a Ray cluster."""

    def __init__(self) -> None:
        super().__init__("transfer_queue")
        self.KVBatchMeta = _Batch
        self.tags: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.tags[partition_id].setdefault(key, {}).update(tag)

    async def async_kv_batch_put(
        self, keys: list[str], fields: Any, tags: list[dict[str, Any]], partition_id: str
    ) -> None:
        del fields  # batches are read by their keys
        for key, tag in zip(keys, tags, strict=True):
            await self.async_kv_put(key, partition_id, tag)

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {partition: dict(tags) for partition, tags in self.tags.items()}

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            self.tags[partition_id].pop(key, None)


@dataclass
class _Batch:
    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]


class _Mixed:
    """A task name that differs for each session that reads it."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self._tasks = iter(tasks)

    def __str__(self) -> str:
        return next(self._tasks)


class V1:
    """The V1 trainers' parts for generation and sampling: their worker and replay buffers."""

    def __init__(self, worker: AgentLoopWorker) -> None:
        self._queue = sys.modules["transfer_queue"] = _Queue()
        name = "verl.trainer.ppo.v1"
        # Not the package itself, which imports whole trainers.
        package = sys.modules[name] = ModuleType(name)
        found = importlib.util.find_spec("verl.trainer.ppo")
        assert found is not None and found.submodule_search_locations is not None
        package.__path__ = [f"{found.submodule_search_locations[0]}/v1"]
        for module in ("agent_loop_tq", "replay_buffer"):
            sys.modules.pop(f"{name}.{module}", None)
        loops = importlib.import_module(f"{name}.agent_loop_tq")
        self._buffers = importlib.import_module(f"{name}.replay_buffer")
        made = loops.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        self.worker = made.__new__(made)
        self.worker.__dict__.update(worker.__dict__)

    async def run_group(self, uid: str, *tasks: str) -> str:
        """Run a session of one prompt for each of these tasks. Returns verl's view of the group."""
        pending = {"is_prompt": True, "status": "pending", "global_steps": STEP}
        await self._queue.async_kv_put(uid, "train", pending)
        prompt = {"uid": uid, "task": _Mixed(tasks), "agent_name": "plimsoll"}
        prompt |= {"global_steps": STEP, "raw_prompt": [], "__rollout_n__": len(tasks)}
        sampling = {"temperature": 1.0, "logprobs": True}
        trajectory = {"step": STEP, "sample_index": 0, "rollout_n": 0, "validate": False}
        await self.worker._run_prompt(prompt, sampling, trajectory)
        return self._queue.tags["train"][uid]["status"]

    def sample(self, kind: str, groups: int) -> tuple[list[str], int]:
        """A batch of a number of groups, by their sessions, and the number of replaced groups."""
        refilled = list[int]()
        config = {"max_off_policy_threshold": None, "max_off_policy_strategy": "drop"}
        buffer = getattr(self._buffers, kind)(
            kind, {}, **config, sampler_kwargs={}, poll_interval=0.01, refill_fn=refilled.append
        )
        batch, _ = buffer.sample(STEP, "train", groups)
        return sorted(key.rpartition("_")[0] for key in batch.keys), sum(refilled)
