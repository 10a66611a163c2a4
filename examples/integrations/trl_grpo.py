"""Train with TRL on rollouts of Plimsoll: python examples/integrations/trl_grpo.py MODEL [STEPS]

MODEL is the folder of a Hugging Face model with a chat template.
"""

import sys
from pathlib import Path

import torch
from trl import GRPOConfig, GRPOTrainer

from plimsoll.core.errors import PlimsollError
from plimsoll.integrations.trl import TrlRollouts, verdict

CONFIG = Path(__file__).with_name("tasks.toml")


def main(model, steps=30):
    with TrlRollouts(CONFIG, model) as rollouts:
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir="runs/trl",
                per_device_train_batch_size=8,
                num_generations=8,
                max_steps=int(steps),
                bf16=torch.cuda.is_available(),
                logging_steps=1,
                report_to="none",
            ),
            train_dataset=rollouts.dataset(),
            rollout_func=rollouts,
            reward_funcs=verdict,
        )
        trainer.train()
        print(f"see: {rollouts.directory}")


if not 2 <= len(sys.argv) <= 3:
    sys.exit(__doc__)
try:
    main(*sys.argv[1:])
except PlimsollError as error:
    sys.exit(str(error))
