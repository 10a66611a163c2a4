#!/bin/bash
set -euo pipefail
export LC_ALL=C
tr 'A-Z' 'a-z' </app/story.txt | tr -cs 'a-z' '\n' | sed '/^$/d' | sort | uniq -c |
    sort -k1,1nr -k2,2 | awk '{ print $2, $1 }' >/app/counts.txt
