#!/bin/bash
cat /app/hello.txt >/tmp/test_output.log 2>&1
if python3 -B /tests/grade.py /tmp/test_output.log; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
