#!/bin/bash
set -euo pipefail
echo "$HARBOUR_GREETING" >/app/greeting.txt
cat >/app/greet.sh <<'END'
#!/bin/bash
for name in "$@"; do
    echo "${HARBOUR_GREETING:-Hello}, $name! Welcome to ${HARBOUR_NAME:-the sea}."
done
END
