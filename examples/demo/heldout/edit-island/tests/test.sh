#!/bin/bash
# The reward is 1 when /app holds exactly the files of /tests/expected, else 0.
if diff -r /tests/expected /app; then
    echo "ok: /app is as expected"
    reward=1
else
    echo "FAIL: lines with < are expected, lines with > are there"
    reward=0
fi
echo "$reward" >/logs/verifier/reward.txt
