#!/bin/bash
cat >/app/reorder.sh <<'END'
#!/bin/bash
awk -F, 'NR > 1 && $2 < $3 { print $1, $3 - $2 }' "$1"
END
