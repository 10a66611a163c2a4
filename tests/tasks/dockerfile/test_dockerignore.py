"""`.dockerignore` ignores exactly the files that Docker ignores."""

from pathlib import Path

import pytest

from plimsoll.core.errors import TaskError
from plimsoll.tasks.dockerfile.dockerignore import IgnoreRules


@pytest.mark.parametrize(
    ("rules", "path", "ignored"),
    [
        ("a", "a", True),
        ("a", "a/b/c", True),
        ("a", "b/a", False),
        ("a", "ab", False),
        ("/a", "a", True),
        ("a/", "a/x", True),
        ("./a//b/../c", "a/c", True),
        ("*.md", "README.md", True),
        ("*.md", "docs/README.md", False),
        ("*/*.md", "docs/README.md", True),
        ("*/temp*", "x/temporary/deep/file", True),
        ("*/temp*", "temporary", False),
        ("temp?", "tempa", True),
        ("temp?", "temp", False),
        ("temp?", "temp/", False),
        ("**/*.go", "a.go", True),
        ("**/*.go", "a/b/c.go", True),
        ("**/*.go", "a/b/c.gox", False),
        ("**/node_modules", "x/y/node_modules/z", True),
        ("a/**", "a/b", True),
        ("a/**", "a", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("**", "anything/at/all", True),
        ("a.b", "axb", False),
        ("[a-c].txt", "b.txt", True),
        ("[a-c].txt", "d.txt", False),
        ("[^a].txt", "b.txt", True),
        ("[^a].txt", "a.txt", False),
        (r"\*.txt", "*.txt", True),
        (r"\*.txt", "x.txt", False),
        ("a+b(c)$", "a+b(c)$", True),
        ("*.md\n!README.md", "README.md", False),
        ("*.md\n!README.md", "OTHER.md", True),
        ("!README.md\n*.md", "README.md", True),
        ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", True),
        ("a\n!a/keep", "a/keep", False),
        ("a\n!a/keep", "a/keep/deep", False),
        ("a\n!a/keep", "a/other", True),
        ("*\n! src ", "src/x", False),
        ("*\n!src", "lib/x", True),
        ("# a\n\n  \nb", "# a", False),
        (" #a", "#a", True),
        ("a\r\nb\r\n", "a", True),
        (".", "a", False),
        ("/", "a", False),
        ("", "a", False),
    ],
)
def test_the_last_matching_rule_decides(rules: str, path: str, ignored: bool):
    assert IgnoreRules.from_text(rules).ignored(path) is ignored


def test_a_missing_file_ignores_nothing(tmp_path: Path):
    assert not IgnoreRules.from_file(tmp_path / ".dockerignore").ignored("a")


def test_rules_are_read_from_a_file(tmp_path: Path):
    file = tmp_path / ".dockerignore"
    file.write_bytes(b"\xef\xbb\xbf*.log\r\n!keep.log\r\n")
    rules = IgnoreRules.from_file(file)
    assert rules.ignored("a.log")
    assert not rules.ignored("keep.log")
    assert rules.has_exceptions


@pytest.mark.parametrize("pattern", ["[a", "a\\", "[]", "[z-a]", "!"])
def test_an_invalid_pattern_is_an_error_with_its_line(pattern: str):
    with pytest.raises(TaskError, match=r"^\.dockerignore:2: "):
        IgnoreRules.from_text(f"fine\n{pattern}")
