#!/bin/bash
# The reward is 1 when /app/errors.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /app/errors.txt ]; then
    echo "FAIL: /app/errors.txt is not there"
elif diff -u --label expected --label /app/errors.txt /tests/expected.txt /app/errors.txt; then
    echo "ok: /app/errors.txt is as expected ($(wc -l </app/errors.txt) lines)"
    reward=1
else
    echo "FAIL: /app/errors.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
