#!/bin/sh
# Takes the amounts out of each shop's journal.
set -eu
for journal in /shops/*.journal; do
    shop=$(basename "$journal" .journal)
    sed -n 's/^sale //p' "$journal" >"/exports/$shop.txt"
done
