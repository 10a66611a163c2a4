#!/bin/bash
# The reward is 1 when /app/clean.csv is exactly the expected file, else 0.
reward=0
if [ ! -f /app/clean.csv ]; then
    echo "FAIL: /app/clean.csv is not there"
elif diff -u --label expected --label /app/clean.csv /tests/expected.csv /app/clean.csv; then
    echo "ok: /app/clean.csv is as expected ($(wc -l </app/clean.csv) lines)"
    reward=1
else
    echo "FAIL: /app/clean.csv differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
