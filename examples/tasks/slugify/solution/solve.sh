#!/bin/bash
cat >/app/slug.py <<'END'
import re
import unicodedata


def slugify(title: str, limit: int = 40) -> str:
    bare = unicodedata.normalize("NFKD", re.sub("['’]", "", title))
    bare = "".join(c for c in bare if not unicodedata.combining(c)).lower()
    words = re.findall("[a-z0-9]+", bare)
    if not words:
        return "untitled"
    slug = words[0][:limit]
    for word in words[1:]:
        if len(slug) + 1 + len(word) > limit:
            break
        slug += "-" + word
    return slug
END
