#!/bin/bash
cat >/app/pairs.py <<'END'
def count_pairs(numbers, target):
    """The number of pairs of positions i < j with numbers[i] + numbers[j] == target."""
    seen = {}
    count = 0
    for number in numbers:
        count += seen.get(target - number, 0)
        seen[number] = seen.get(number, 0) + 1
    return count
END
