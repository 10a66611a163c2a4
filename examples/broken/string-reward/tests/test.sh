#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then
    echo "ok: /app/hello.txt holds hello"
else
    echo "FAIL: /app/hello.txt does not hold hello"
fi
echo '{"reward": "1"}' >/logs/verifier/reward.json
