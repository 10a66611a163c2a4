#!/bin/bash
cat >/app/rotate.sh <<'END'
#!/bin/bash
set -eu
stop() {
    echo "rotate: $1" >&2
    exit 2
}
[ $# -eq 2 ] || stop "usage: rotate.sh FILE KEEP"
file=$1 keep=$2
[[ $keep =~ ^[1-9][0-9]*$ ]] || stop "KEEP is a whole number of 1 or more, not '$keep'"
[ -f "$file" ] || stop "$file is not there"

for copy in "$file".*; do
    number=${copy##*.}
    [[ $number =~ ^[0-9]+$ ]] && [ "$number" -ge "$keep" ] && rm -f -- "$copy"
done
for ((number = keep - 1; number >= 1; number--)); do
    if [ -f "$file.$number" ]; then
        mv -- "$file.$number" "$file.$((number + 1))"
    fi
done
mv -- "$file" "$file.1"
: >"$file"
END
