"""Exits with 0 when the berth table in /app/repo works."""

import sys

# Commits follow each other faster than a cached module notices.
sys.dont_write_bytecode = True
sys.path.insert(0, "/app/repo")

from berths import assign  # noqa: E402

ships = [("Ariel", 80), ("Brig", 20), ("Clio", 50)]
found = assign(ships, [60, 30, 90])
if found != {"Brig": 30, "Clio": 60, "Ariel": 90}:
    sys.exit(f"wrong berths: {found}")
print("ok")
