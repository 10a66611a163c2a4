"""Words of the source: module docstrings name their subject, and retired names are gone."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/plimsoll"
MODULES = sorted(SOURCE.rglob("*.py"))
QUESTIONS = {"What", "Who", "Which", "How", "Whoever", "Whether"}
RETIRED = {"door", "doors", "keeper", "kept", "known", "learns", "place", "taste", "told", "wanted"}
"""Names of modules, classes and functions, in lower case and without underscores around them."""
RETIRED_TYPES = RETIRED | {"line"}
"""Functions may be called `line`: they return a line of text."""


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_docstring_opens_with_its_subject(path: Path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, f"{name_of(path)} has no docstring"
    first = re.split(r"\W+", text.lstrip("`"), maxsplit=1)[0]
    assert first not in QUESTIONS


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_retired_name_is_used(path: Path):
    assert path.stem not in RETIRED_TYPES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert node.name.strip("_").lower() not in RETIRED_TYPES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.name.strip("_").lower() not in RETIRED
