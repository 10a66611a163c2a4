#!/bin/bash
set -euo pipefail
awk '/^[ \t]/ { next }
     $2 == "ERROR" { sub(/:$/, "", $3); count[$3]++; last[$3] = $1 }
     END { for (name in count) print name, count[name], last[name] }' /app/service.log |
    LC_ALL=C sort -k2,2nr -k1,1 >/app/errors.txt
