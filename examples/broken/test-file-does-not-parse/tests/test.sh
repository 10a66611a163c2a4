#!/bin/bash
cd /tests || exit 1
if python3 -B -m unittest -v test_outputs; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
