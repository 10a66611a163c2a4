#!/bin/bash
# The reward is 1 when the test passes, and is the one that was given, else 0.
cd /app || exit 1
reward=0
if cmp /tests/test_lock.py test_lock.py && report=$(python3 -B -S test_lock.py 2>&1) && [[ $report == ok:* ]]; then
    reward=1
fi
echo "${report:-FAIL}"
echo "$reward" >/logs/verifier/reward.txt
