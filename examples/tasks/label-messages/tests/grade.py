"""Compares /app/labels.csv with the right labels and writes reward.json."""

import json
from pathlib import Path

COUNT = 15
SPAM = {1, 3, 5, 6, 9, 11, 14, 15}


def read_labels(path):
    """The labels by number; lines that are not of the form asked for are said and left out."""
    labels = {}
    if not path.is_file():
        print(f"FAIL: {path} is not there")
        return labels
    for line in path.read_text(errors="replace").splitlines():
        number, _, label = line.partition(",")
        if number.isdecimal() and 1 <= int(number) <= COUNT and label in ("spam", "ham"):
            labels[int(number)] = label
        else:
            print(f"FAIL: not a label: {line!r}")
    return labels


labels = read_labels(Path("/app/labels.csv"))
said = {number for number, label in labels.items() if label == "spam"}
for number in range(1, COUNT + 1):
    right = "spam" if number in SPAM else "ham"
    print(f"message {number}: {labels.get(number, 'no label')}, right is {right}")

hits = len(said & SPAM)
recall = hits / len(SPAM)
false_alarms = len(said - SPAM) / (COUNT - len(SPAM))
rewards = {
    # One label for everything is worth nothing.
    "reward": max(0.0, recall - false_alarms),
    "precision": hits / len(said) if said else 0.0,
    "recall": recall,
    "coverage": len(labels) / COUNT,
}
Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
print(json.dumps(rewards))
