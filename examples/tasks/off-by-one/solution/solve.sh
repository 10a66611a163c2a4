#!/bin/bash
set -euo pipefail
sed -i -e 's|return total // size + 1|return (total + size - 1) // size|' \
    -e 's|start = number \* size|if number < 1:\n        return []\n    start = (number - 1) * size|' \
    -e 's|start + size - 1\]|start + size]|' \
    -e 's|return index // size|return index // size + 1|' /app/pages.py
