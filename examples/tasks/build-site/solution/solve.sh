#!/bin/bash
set -euo pipefail
mkdir -p /app/site
python3 - <<'END'
from html import escape
from pathlib import Path

posts = []
for path in Path("/app/posts").glob("*.md"):
    title, date, *_ = path.read_text().splitlines()
    posts.append((date.removeprefix("date: "), escape(title.removeprefix("# ")), path.stem))
items = "".join(
    f'<li><a href="{name}.html">{title}</a> {date}</li>\n'
    for date, title, name in sorted(posts, reverse=True)
)
page = f"<!DOCTYPE html>\n<html><body>\n<ul>\n{items}</ul>\n</body></html>\n"
Path("/app/site/index.html").write_text(page)
END
