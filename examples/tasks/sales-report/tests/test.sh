#!/bin/bash
# The reward is 1 when /app/report.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /app/report.txt ]; then
    echo "FAIL: /app/report.txt is not there"
elif diff -u --label expected --label /app/report.txt /tests/expected.txt /app/report.txt; then
    echo "ok: /app/report.txt is as expected ($(wc -l </app/report.txt) lines)"
    reward=1
else
    echo "FAIL: /app/report.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
