#!/bin/bash
report=$(python3 -B -m unittest discover -v -s /tests -p 'check_*.py' 2>&1)
echo "$report"
if grep -q '^Ran [1-9]' <<<"$report" && grep -qx OK <<<"$report"; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
