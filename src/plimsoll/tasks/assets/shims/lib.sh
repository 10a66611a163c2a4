# Functions of the shims, in POSIX sh without programs that an image may lack.

here=${0%/*}
assets=${here%/*}
nl='
'
tab=$(printf '\t')

# Sets `real` to the next program of this name in PATH after the shim.
find_real() {
    ours=$(CDPATH='' cd -- "$here" && pwd -P)
    rest=$PATH:
    while [ -n "$rest" ]; do
        dir=${rest%%:*}
        rest=${rest#*:}
        [ -n "$dir" ] || dir=.
        if [ -f "$dir/$1" ] && [ -x "$dir/$1" ] &&
            [ "$(CDPATH='' cd -- "$dir" && pwd -P)" != "$ours" ]; then
            real=$dir/$1
            return 0
        fi
    done
    return 1
}

# Sets `file` to the staged file of a URL.
staged_file() {
    while IFS=$tab read -r url path; do
        if [ "$url" = "${1%%#*}" ]; then
            file=$assets/$path
            return 0
        fi
    done <"$here/urls"
    return 1
}

# Whether `urls` has at least one line and all of them are staged.
all_staged() {
    left=$urls
    [ -n "$left" ] || return 1
    while [ -n "$left" ]; do
        staged_file "${left%%"$nl"*}" || return 1
        left=${left#*"$nl"}
    done
}

# The host of the first URL, for the error message of a missing program.
first_host() {
    host=${urls%%"$nl"*}
    host=${host#*://}
    host=${host%%/*}
    host=${host##*@}
    printf '%s' "${host%%:*}"
}

# The file name of a URL.
url_name() {
    name=${1%%[?#]*}
    printf '%s' "${name##*/}"
}
