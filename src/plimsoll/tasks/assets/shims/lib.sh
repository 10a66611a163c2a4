# Shared by the shims. POSIX sh, and no program that an image may lack.

here=${0%/*}
assets=${here%/*}
nl='
'
tab=$(printf '\t')

# Sets `real` to the next program of this name in PATH that is not a shim.
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

# Whether each of the lines in `urls` is staged, and there is one.
all_staged() {
    left=$urls
    [ -n "$left" ] || return 1
    while [ -n "$left" ]; do
        staged_file "${left%%"$nl"*}" || return 1
        left=${left#*"$nl"}
    done
}

# The host of the first URL, for the message of a program that is not there.
first_host() {
    host=${urls%%"$nl"*}
    host=${host#*://}
    host=${host%%/*}
    host=${host##*@}
    printf '%s' "${host%%:*}"
}

# The name that a URL's file is saved under.
url_name() {
    name=${1%%[?#]*}
    printf '%s' "${name##*/}"
}
