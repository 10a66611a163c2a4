#!/bin/bash
if [ -f /opt/parsers/log_parsers.py ] && grep -qx hello /app/hello.txt; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
