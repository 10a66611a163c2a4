#!/bin/bash
# The reward is 1 when the repository's own tests and the hidden tests all pass, else 0. Both come
# from here, so that edited tests in /app do not count.
reward=1
run() {
    echo "== $1"
    report=$(cd "$2" && python3 -B -m unittest discover -v -s "$3" -t "$2" 2>&1)
    status=$?
    echo "$report"
    if [ "$status" -ne 0 ] || ! grep -qx OK <<<"$report"; then
        reward=0
    fi
}
rm -rf /tmp/graded && mkdir /tmp/graded
if [ -d /app/durations ]; then
    cp -r /app/durations /tmp/graded/
fi
cp -r /tests/suite /tests/hidden /tmp/graded/
run "the repository's own tests" /tmp/graded suite
run "hidden tests" /tmp/graded hidden
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
