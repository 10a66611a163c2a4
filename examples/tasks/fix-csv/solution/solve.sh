#!/bin/bash
set -euo pipefail
python3 - <<'END'
import csv
import re

rows = {}
for line in open("/app/crew.csv", newline=""):
    bare = re.sub(r'"[^"]*"', "", line)
    separator = ";" if ";" in bare else ","
    fields = next(csv.reader([line.strip()], delimiter=separator, skipinitialspace=True), [])
    fields = [field.strip() for field in fields]
    if not fields or fields[0] == "id":
        continue
    number, name, joined = fields
    if "." in joined:
        day, month, year = joined.split(".")
        joined = f"{year}-{int(month):02}-{int(day):02}"
    rows[int(number)] = [number, name, joined]

with open("/app/clean.csv", "w", newline="") as out:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "name", "joined"])
    writer.writerows(rows[number] for number in sorted(rows))
END
