#!/bin/bash
echo "waiting for a service that never starts"
sleep 60
echo 1 >/logs/verifier/reward.txt
