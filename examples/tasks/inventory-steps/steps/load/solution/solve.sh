#!/bin/bash
set -euo pipefail
python3 - <<'END'
import csv
import json

with open("/app/stock.csv") as table:
    stock = {
        row["item"]: {"count": int(row["count"]), "minimum": int(row["minimum"])}
        for row in csv.DictReader(table)
    }
with open("/app/stock.json", "w") as out:
    json.dump(stock, out, indent=2)
END
