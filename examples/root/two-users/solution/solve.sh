#!/bin/bash
set -euo pipefail
umask 022
awk 'NR == FNR { length_of[$1] = $2; next }
     { best = "none"
       for (b in length_of)
           if (length_of[b] >= $2 && (best == "none" || length_of[b] < length_of[best])) best = b
       print $1, best }' /app/rules/berths.txt /app/harbour/ships.txt >/app/harbour/plan.txt
