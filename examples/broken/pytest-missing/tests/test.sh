#!/bin/bash
cd /tests || exit 1
# -S leaves out installed packages, so that pytest is missing on every host.
if python3 -B -S -m pytest -rA test_outputs.py; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
