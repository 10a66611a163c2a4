#!/bin/bash
if [ "$(cat /app/first.txt 2>/dev/null)" = one ]; then
    echo "ok: /app/first.txt holds one"
    echo 1 >/logs/verifier/reward.txt
else
    echo "FAIL: /app/first.txt does not hold one"
    echo 0 >/logs/verifier/reward.txt
fi
