#!/bin/bash
set -euo pipefail
for file in /exports/*.txt; do
    echo "$(basename "$file" .txt) $(awk '{ sum += $1 } END { print sum }' "$file")"
done | LC_ALL=C sort >/app/sales.txt
