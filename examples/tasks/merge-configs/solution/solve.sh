#!/bin/bash
set -euo pipefail
python3 - <<'END'
import json
from pathlib import Path


def merge(under, over):
    result = dict(under)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


merged = {}
for name in ("base", "staging", "local"):
    merged = merge(merged, json.loads(Path(f"/app/conf/{name}.json").read_text()))
Path("/app/merged.json").write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n")
END
