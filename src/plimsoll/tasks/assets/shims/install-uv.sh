#!/bin/sh
# Answers for uv's installer: puts the staged uv where the installer would put it.
set -eu

from=@TOOL@
to=${UV_INSTALL_DIR:-${UV_UNMANAGED_INSTALL:-${XDG_BIN_HOME:-$HOME/.local/bin}}}
mkdir -p "$to"
for name in uv uvx; do
    ln -sf "$from/$name" "$to/$name"
done
cat >"$to/env" <<EOF
#!/bin/sh
case ":\${PATH}:" in
*:"$to":*) ;;
*) export PATH="$to:\$PATH" ;;
esac
EOF
echo "plimsoll: uv @VERSION@ is installed to $to from the staged assets" >&2
