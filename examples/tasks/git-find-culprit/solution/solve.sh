#!/bin/bash
set -euo pipefail
cd /app/repo
first=$(git rev-list --max-parents=0 main)
git bisect start main "$first" >/dev/null
git bisect run python3 /app/check.py
git rev-parse refs/bisect/bad >/app/culprit.txt
git bisect reset
