"""Text that passed `safe_text` is safe to store, to send and to show."""

import json
import sqlite3

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.errors import TransferError
from plimsoll.core.text import safe_line, safe_names, safe_text

ANY = st.text(st.characters(exclude_categories=())) | st.text("\x1b[\n\r\t\0\u202e\udcff\ud800a ")


@given(ANY)
def test_any_text_can_be_written_everywhere(text: str):
    for safe in (safe_text(text), safe_line(text)):
        assert msgspec.json.decode(msgspec.json.encode(safe)) == safe
        assert json.loads(json.dumps(safe, ensure_ascii=False).encode()) == safe
        (stored,) = sqlite3.connect(":memory:").execute("select ?", [safe]).fetchone()
        assert stored == safe
        assert all(line.isprintable() for line in safe.split("\n"))
    assert "\n" not in safe_line(text)
    assert safe_text(safe_text(text)) == safe_text(text)


@given(st.lists(ANY, unique=True))
def test_different_names_stay_different(names: list[str]):
    safe = safe_names(names)
    assert len(set(safe)) == len(names)
    assert all(name.isprintable() for name in safe)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("größer 漢 😀", "größer 漢 😀"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("two\r\n lines ", "two  lines"),
        ("name\udcff", r"name\xff"),
        ("half \ud83d", r"half \ud83d"),
        ("turn \u202e me", r"turn \u202e me"),
        ("nul\0", r"nul\x00"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, line: str):
    assert safe_line(text) == line


def test_a_long_line_is_cut():
    assert safe_line("x" * 50, 10) == "x" * 9 + "…"


def test_an_error_can_always_be_shown_and_written():
    error = TransferError("/a/\udcff\x1b[2J\nb")
    assert str(error) == "/a/\\xff\\x1b[2J\nb"
    str(error).encode()
