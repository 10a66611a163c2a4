#!/bin/bash
# The reward is 1 when /app/unique.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /app/unique.txt ]; then
    echo "FAIL: /app/unique.txt is not there"
elif diff -u --label expected --label /app/unique.txt /tests/expected.txt /app/unique.txt; then
    echo "ok: /app/unique.txt is as expected ($(wc -l </app/unique.txt) lines)"
    reward=1
else
    echo "FAIL: /app/unique.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
