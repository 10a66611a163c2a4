#!/bin/bash
# The reward is 1 when /app/total.txt holds the total of the order, else 0.
reward=0
total=$(tr -d '[:space:]' </app/total.txt 2>/dev/null)
if [ "$total" = 59193 ]; then
    echo "ok: the total is right"
    reward=1
else
    echo "FAIL: /app/total.txt holds '$total', not the total of the order"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
