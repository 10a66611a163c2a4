#!/bin/bash
# The reward is 1 when the culprit is named and the repository is as it was, else 0.
culprit=5c33911b6721c8cbd456739d32e7aa14085151a0
tip=7b7accb6811ed1b17409e33669f6888ee9ebec28
reward=1
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok: $1 is $3"
    else
        echo "FAIL: $1 is '$2', expected '$3'"
        reward=0
    fi
}
found=$(cat /app/culprit.txt 2>/dev/null || echo "no file")
expect "the commit in /app/culprit.txt" "$found" "$culprit"
git="git -c safe.directory=/app/repo -C /app/repo"
expect "the tip of main" "$($git rev-parse main)" "$tip"
expect "the branch checked out" "$($git rev-parse --abbrev-ref HEAD)" main
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
