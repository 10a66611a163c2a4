#!/bin/bash
set -euo pipefail
cd /app/shop
sed -i -e 's/def __init__(self, items={}):.*/def __init__(self, items=None):/' \
    -e 's/self.items = items$/self.items = dict(items or {})/' \
    -e 's/if quantity < 0:/if quantity < 1:/' \
    -e 's/self.items\[name\] = (cents, quantity)/_, before = self.items.get(name, (0, 0))\n        self.items[name] = (cents, before + quantity)/' \
    -e 's/self.items.pop(name, None)/del self.items[name]/' \
    -e 's|return int(cents - cents \* discount / 100)|return cents * (100 - discount) // 100|' cart.py
