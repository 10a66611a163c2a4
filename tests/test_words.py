"""Words of the source: module docstrings name their subject, and retired names are gone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src/plimsoll"
QUESTIONS = {"What", "Who", "Which", "How", "Whoever", "Whether"}
RETIRED_VARIABLES = {
    "door",
    "doors",
    "keeper",
    "learns",
    "place",
    "places",
    "taste",
    "told",
    "wanted",
}
"""Names of variables, in lower case and without underscores around them."""
RETIRED = RETIRED_VARIABLES | {"kept", "known"}
"""Names of functions."""
RETIRED_TYPES = RETIRED | {"line"}
"""Names of modules, classes, constants and attributes. Functions and variables may be called
`line`: a line of text."""


def modules(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every module below a folder, with its path in the repository."""
    found = sorted(folder.rglob("*.py"))
    assert len(found) > 10
    for path in found:
        yield path.relative_to(REPOSITORY), ast.parse(path.read_text())


def names(node: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """The names that a node defines, each with the retired names of its kind."""
    match node:
        case ast.ClassDef(name=name):
            yield name, RETIRED_TYPES
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, RETIRED
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name, RETIRED_TYPES
        case ast.Name(id=name, ctx=ast.Store()):
            yield name, RETIRED_TYPES if name.isupper() else RETIRED_VARIABLES
        case ast.arg(arg=name):
            yield name, RETIRED_VARIABLES
        case _:
            pass


def test_a_module_docstring_opens_with_its_subject():
    first_words = {
        str(path): re.split(r"\W+", (ast.get_docstring(module) or "").lstrip("`"), maxsplit=1)[0]
        for path, module in modules(SOURCE)
    }
    assert {path: word for path, word in first_words.items() if not word or word in QUESTIONS} == {}


@pytest.mark.parametrize("folder", ["src", "tests", "bench"])
def test_no_retired_name_is_used(folder: str):
    used: list[str] = []
    for path, module in modules(REPOSITORY / folder):
        if path.stem in RETIRED_TYPES:
            used.append(str(path))
        for node in ast.walk(module):
            for name, retired in names(node):
                if name.strip("_").lower() in retired:
                    used.append(f"{path}:{node.lineno}: {name}")
    assert used == []
