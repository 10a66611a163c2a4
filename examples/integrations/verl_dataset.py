"""Write a dataset for verl, one row per task:

    python examples/integrations/verl_dataset.py TASKS FILE

Train on it with verl, and roll out with Plimsoll:

    python -m verl.trainer.main_ppo \
        data.train_files=FILE data.val_files=FILE \
        actor_rollout_ref.rollout.agent.agent_loop_config_path=LOOPS \
        algorithm.adv_estimator=grpo trainer.v1.sampler.sync_refill_failed_groups=True ...

LOOPS is verl_loops.yaml.
"""

import sys
from pathlib import Path

from datasets import Dataset

from plimsoll.tasks.loader import load_tasks


def row(task):
    """The columns that verl needs, with the name of the task. The agent gets the instruction."""
    prompt = [{"role": "user", "content": task.name}]
    return {
        "prompt": prompt,
        "task": task.name,
        "agent_name": "plimsoll",
        "data_source": "plimsoll",
        "reward_model": {"style": "rule", "ground_truth": ""},
    }


def main(tasks, file):
    rows = [row(task) for task in load_tasks(Path(tasks)).tasks]
    Dataset.from_list(rows).to_parquet(file)
    print(f"{len(rows)} tasks: {file}")


main(*sys.argv[1:])
