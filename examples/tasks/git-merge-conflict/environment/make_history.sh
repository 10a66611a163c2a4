#!/bin/bash
# Leaves /app in the middle of a merge.
set -euo pipefail
export GIT_AUTHOR_DATE=2024-05-02T08:00:00Z GIT_COMMITTER_DATE=2024-05-02T08:00:00Z
source=/tmp/source
commit() {
    cp "$source/$1" convert.py
    git add convert.py
    git commit -q -m "$2"
}
cd /app
git init -q -b main .
git config user.name Keeper
git config user.email keeper@example.org
commit base.py "Convert speeds"
git branch feature/knots
commit main.py "Refuse negative speeds"
git checkout -q feature/knots
commit feature.py "Add knots, round the result"
git checkout -q main
if git merge feature/knots; then
    echo "the merge was meant to stop at a conflict" >&2
    exit 1
fi
