#!/bin/bash
# Each file holds its own first name, so that the tests can tell which file became which.
set -euo pipefail
mkdir -p /app/photos
cd /app/photos
for name in 'Harbour 2023-4-7 (12).JPG' 'Harbour 2023-12-24 (1).jpeg' 'Old Mole 2022-1-31 (105).jpg' \
    'Old North Pier 2024-10-2 (7).JPEG' 'notes.txt' 'Harbour (3).JPG' 'Lock 2021-11-11 (40).png'; do
    printf '%s\n' "$name" >"$name"
done
