#!/bin/bash
set -euo pipefail
cd /app/photos
form='^(.+) ([0-9]{4})-([0-9]{1,2})-([0-9]{1,2}) \(([0-9]+)\)\.([A-Za-z]+)$'
for name in *; do
    [[ $name =~ $form ]] || continue
    place=${BASH_REMATCH[1],,}
    ending=${BASH_REMATCH[6],,}
    [ "$ending" = jpeg ] && ending=jpg
    new=$(printf '%s-%02d-%02d_%s_%03d.%s' "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}" \
        "${BASH_REMATCH[4]}" "${place// /-}" "${BASH_REMATCH[5]}" "$ending")
    mv -n -- "$name" "$new"
done
