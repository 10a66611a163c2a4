#!/bin/bash
cat >/app/largest.sh <<'END'
#!/bin/bash
set -eu
find "$1" -type f -printf '%s\t%P\n' | LC_ALL=C sort -t $'\t' -k1,1nr -k2 | sed "$2q"
END
