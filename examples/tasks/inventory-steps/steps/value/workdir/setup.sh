#!/bin/bash
# The prices arrive in two parts; the agent finds them as one table.
set -euo pipefail
cd /app
cat prices.part1 prices.part2 >prices.csv
rm prices.part1 prices.part2
