#!/bin/bash
# The reward is 1 when every hidden test passes, else 0.
cd /tests || exit 1
report=$(python3 -B -m unittest -v test_outputs 2>&1)
status=$?
echo "$report"
# "OK" is asked for too: code under test that ends the interpreter early has passed nothing.
if [ "$status" -eq 0 ] && grep -qx OK <<<"$report"; then
    reward=1
else
    reward=0
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
