#!/bin/bash
set -euo pipefail
python3 - <<'END'
jobs = {}
for line in open("/app/queue/jobs.tsv"):
    name, priority, needs = line.rstrip("\n").split("\t")
    jobs[name] = (int(priority), set() if needs == "-" else set(needs.split(",")))

order = []
while jobs:
    ready = [name for name, (_, needs) in jobs.items() if needs <= set(order)]
    chosen = min(ready, key=lambda name: (-jobs[name][0], name))
    order.append(chosen)
    del jobs[chosen]
with open("/app/order.txt", "w") as out:
    out.writelines(f"{name}\n" for name in order)
END
