#!/bin/bash
set -euo pipefail
python3 - <<'END'
import csv
import json

with open("/app/stock.json") as file:
    stock = json.load(file)
with open("/app/prices.csv") as table:
    value = {
        row["item"]: stock[row["item"]]["count"] * int(row["cents"])
        for row in csv.DictReader(table)
    }
value["total"] = sum(value.values())
with open("/app/value.json", "w") as out:
    json.dump(value, out, indent=2)
END
