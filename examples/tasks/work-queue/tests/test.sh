#!/bin/bash
# The reward is 1 when /app/order.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /app/order.txt ]; then
    echo "FAIL: /app/order.txt is not there"
elif diff -u --label expected --label /app/order.txt /tests/expected.txt /app/order.txt; then
    echo "ok: /app/order.txt is as expected ($(wc -l </app/order.txt) lines)"
    reward=1
else
    echo "FAIL: /app/order.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
