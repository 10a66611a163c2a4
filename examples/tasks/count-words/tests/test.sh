#!/bin/bash
# The reward is 1 when /app/counts.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /app/counts.txt ]; then
    echo "FAIL: /app/counts.txt is not there"
elif diff -u --label expected --label /app/counts.txt /tests/expected.txt /app/counts.txt; then
    echo "ok: /app/counts.txt is as expected ($(wc -l </app/counts.txt) lines)"
    reward=1
else
    echo "FAIL: /app/counts.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
