#!/bin/sh
# Replaces uv's installer: installs the staged uv to the folder of the installer.
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
echo "plimsoll: installed uv @VERSION@ from the staged assets to $to" >&2
