#!/bin/bash
set -euo pipefail
cat >/tmp/parse.py <<'END'
def value_of(text):
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch("[+-]?[0-9]+", text):
        return int(text)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def parse(text):
    """The sections of a settings file, each a dict of its keys."""
    sections = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            name = line[1:-1].strip()
            if not name:
                raise SettingsError(number, "a section has a name")
            sections.setdefault(name, {})
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise SettingsError(number, "expected 'key = value'")
        sections.setdefault(name, {})[key.strip()] = value_of(value.strip())
    return sections
END
sed -i '/^def parse/,$d' /app/settings.py
{ echo "import re"; echo; echo; cat /app/settings.py /tmp/parse.py; } >/tmp/settings.py
cp /tmp/settings.py /app/settings.py
