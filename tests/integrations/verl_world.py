"""verl with a server that says what it is told to. Imported only where verl is installed."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

with warnings.catch_warnings():
    # What verl and its parts warn of is theirs.
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

__all__ = ["ANSWERS", "STEP", "batch_of", "loop_of", "make_worker"]

ANSWERS = ("```bash\ntouch /app/done\n```<|end|>", "Done.<|end|>")
STEP = 3


class Client(LLMServerClient):
    """verl's own client, with one server that says what it is told to."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        super().__init__(config)
        self.said: list[list[int]] = []
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
        self.said.append([*prompt_ids, *ids])
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"global_steps": STEP},
        )


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


def make_worker(model: Path, config: Path, folder: Path) -> AgentLoopWorker:
    """verl's worker of agent loops, with ours among them."""
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
