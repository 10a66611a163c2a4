#!/bin/bash
# The reward is 1 when every line below is ok, else 0.
reward=1
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok: $1"
    else
        printf 'FAIL: %s\n  found    %s\n  expected %s\n' "$1" "$2" "$3"
        reward=0
    fi
}
greet() {
    bash /app/greet.sh "$@" 2>&1
}
expect "the greeting that was set" "$(cat /app/greeting.txt 2>&1)" "$EXPECTED_GREETING"
expect "as the environment says" "$(greet Ada)" "$EXPECTED_GREETING, Ada! Welcome to the harbour."
expect "another greeting, two names" "$(HARBOUR_GREETING=Ahoy HARBOUR_NAME=Pier\ 7 greet Bo 'Cy Li')" \
    "$(printf 'Ahoy, Bo! Welcome to Pier 7.\nAhoy, Cy Li! Welcome to Pier 7.')"
expect "nothing set" "$(unset HARBOUR_GREETING HARBOUR_NAME; greet Di)" "Hello, Di! Welcome to the sea."
expect "empty counts as not set" "$(HARBOUR_GREETING='' HARBOUR_NAME='' greet Di)" \
    "Hello, Di! Welcome to the sea."
expect "no arguments" "$(greet; echo end)" end
echo "$reward" >/logs/verifier/reward.txt
echo "reward: $reward"
