#!/bin/bash
set -euo pipefail
sed 's/^[[:space:]]*//; s/[[:space:]]*$//' /app/hosts.txt |
    awk '/^#/ || /^$/ { next } !seen[tolower($0)]++' >/app/unique.txt
