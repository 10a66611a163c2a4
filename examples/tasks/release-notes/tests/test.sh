#!/bin/bash
# The reward is 1 when /logs/artifacts/release.txt is exactly the expected file, else 0.
reward=0
if [ ! -f /logs/artifacts/release.txt ]; then
    echo "FAIL: /logs/artifacts/release.txt is not there"
elif diff -u --label expected --label /logs/artifacts/release.txt /tests/expected.txt /logs/artifacts/release.txt; then
    echo "ok: /logs/artifacts/release.txt is as expected ($(wc -l </logs/artifacts/release.txt) lines)"
    reward=1
else
    echo "FAIL: /logs/artifacts/release.txt differs; lines with - are missing, lines with + are wrong"
fi
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
