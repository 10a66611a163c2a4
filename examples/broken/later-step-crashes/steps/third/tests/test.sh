#!/bin/bash
if [ "$(cat /app/third.txt 2>/dev/null)" = three ]; then
    echo "ok: /app/third.txt holds three"
    echo 1 >/logs/verifier/reward.txt
else
    echo "FAIL: /app/third.txt does not hold three"
    echo 0 >/logs/verifier/reward.txt
fi
