#!/bin/bash
set -u
found=$(cat /app/hello.txt)
if [ "$found" = "$EXPECTED_LINE" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
