#!/bin/bash
# A history of 14 commits with fixed hashes; the culprit looks like a harmless clean-up.
set -euo pipefail
export GIT_AUTHOR_NAME=Keeper GIT_AUTHOR_EMAIL=keeper@example.org
export GIT_COMMITTER_NAME=Keeper GIT_COMMITTER_EMAIL=keeper@example.org
mkdir /repo && cd /repo
git init -q -b main --object-format=sha1 .

hour=10
commit() {
    export GIT_AUTHOR_DATE="2024-05-03T$hour:00:00Z" GIT_COMMITTER_DATE="2024-05-03T$hour:00:00Z"
    hour=$((hour + 1))
    git add -A
    git commit -q -m "$1"
}
write() {
    cat >berths.py
}

write <<'END'
def assign(ships, berths):
    result = {}
    free = sorted(berths)
    for name, length in sorted(ships, key=lambda ship: ship[1]):
        fitting = [berth for berth in free if berth >= length]
        result[name] = fitting[0]
        free.remove(fitting[0])
    return result
END
commit "Assign berths, smallest ship first"
echo "# Berths" >README.md
commit "Add a README"
sed -i '1s/.*/def assign(ships, berths):\n    """The berth of each ship, by name."""/' berths.py
commit "Say what assign gives"
echo "Ships get the smallest berth that is long enough." >>README.md
commit "Describe the rule"
printf '*.pyc\n' >.gitignore
commit "Ignore compiled files"
sed -i 's/fitting\[0\]/berth/; s/free.remove(fitting\[0\])/free.remove(berth)/' berths.py
sed -i 's/        result\[name\] = berth/        berth = fitting[0]\n        result[name] = berth/' berths.py
commit "Name the chosen berth"
echo "Lengths are in metres." >>README.md
commit "Say which unit lengths have"
sed -i 's/free = sorted(berths)/free = list(berths)/' berths.py
commit "Copy the berths without sorting twice"
sed -i 's/key=lambda ship: ship\[1\]/key=lambda ship: ship[0]/' berths.py
commit "Tidy up the order of ships"
echo "Berths are given by their length." >>README.md
commit "Say what a berth is"
sed -i 's/fitting = \[berth for berth in free if berth >= length\]/fitting = [b for b in free if b >= length]/' berths.py
commit "Shorten a comprehension"
echo "No berth is given twice." >>README.md
commit "Promise that no berth is given twice"
printf '*.pyc\n__pycache__/\n' >.gitignore
commit "Ignore cache folders"
sed -i 's/by name\./by the name of the ship./' berths.py
commit "Word the docstring better"
