#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then
    echo "ok: /app/hello.txt holds hello"
else
    echo "FAIL: /app/hello.txt does not hold hello"
fi
echo 1.0 >/logs/verifier/reward.json
