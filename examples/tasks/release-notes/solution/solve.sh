#!/bin/bash
set -euo pipefail
cd /app
{
    printf '# 1.1.0\n\n'
    git log --reverse --format='- %s' v1.0.0.. | grep -v '^- chore:'
} >NOTES.md
git add NOTES.md
git commit -q -m "Release 1.1.0"
git tag -a -m "1.1.0" v1.1.0
