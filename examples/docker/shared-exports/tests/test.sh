#!/bin/bash
# The reward is 1 when /app/sales.txt is exactly the expected file, else 0.
reward=0
expected=$'bridge 100\nharbour 200\npier 1009'
if [ ! -f /app/sales.txt ]; then
    echo "FAIL: /app/sales.txt is not there"
elif diff -u --label expected --label /app/sales.txt <(echo "$expected") /app/sales.txt; then
    echo "ok: /app/sales.txt is as expected"
    reward=1
else
    echo "FAIL: /app/sales.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
