#!/bin/bash
# Right with a network. Without one nothing is fetched, and every reward is 0.
curl -LsSf https://example.invalid/expected.txt -o /tmp/expected.txt
if cmp /tmp/expected.txt /app/compass.txt; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
