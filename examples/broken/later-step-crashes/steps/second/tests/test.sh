#!/bin/bash
set -e
expected=$(cat /tests/expected.txt)
[ "$(cat /app/second.txt)" = "$expected" ]
echo 1 >/logs/verifier/reward.txt
