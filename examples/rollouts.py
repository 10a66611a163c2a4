"""A minimal trainer on batches of Plimsoll: python examples/rollouts.py [RUN]

It only counts tokens. Kill it and run it again with the same RUN: it resumes.
"""

import asyncio
import json
import sys
from pathlib import Path

import plimsoll

CONFIG = Path(__file__).with_name("rollout.toml")


def train(batch, weights):
    """One step: count the generated tokens, and weight them with their rollout's advantage."""
    for sample, advantage in batch.samples():
        weights["tokens"] += sum(sample.mask)
        weights["credit"] += advantage * sum(sample.mask)


async def main(run):
    async with plimsoll.Rollouts(CONFIG, out=run) as rollouts:
        weights = {"tokens": 0, "credit": 0.0}
        if rollouts.checkpoint is not None:
            weights = json.loads((rollouts.checkpoint / "weights.json").read_text())
        async for batch in rollouts.batches():
            await asyncio.to_thread(train, batch, weights)
            text = json.dumps(weights)
            await rollouts.commit(batch, lambda to, t=text: (to / "weights.json").write_text(t))
            print(f"step {batch.step}: reward {batch.reward}, {weights['tokens']} tokens so far")
    print(f"{rollouts.summary.ended}: {rollouts.directory.path}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
