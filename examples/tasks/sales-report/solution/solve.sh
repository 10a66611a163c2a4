#!/bin/bash
set -euo pipefail
awk -F, 'NR > 1 { n[$1]++; cents[$1] += $3 * $4 }
     END { for (r in n) printf "%d\t%s\t%d\n", cents[r], r, n[r] }' /app/orders.csv |
    LC_ALL=C sort -k1,1nr -k2,2 |
    awk -F'\t' '{ printf "%s\t%d\t%.2f\n", $2, $3, $1 / 100; n += $3; all += $1 }
     END { printf "total\t%d\t%.2f\n", n, all / 100 }' >/app/report.txt
