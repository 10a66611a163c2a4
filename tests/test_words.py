"""Words of the source: module docstrings name their subject, and retired names are gone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/plimsoll"
QUESTIONS = {"What", "Who", "Which", "How", "Whoever", "Whether"}
RETIRED = {"door", "doors", "keeper", "kept", "known", "learns", "place", "taste", "told", "wanted"}
"""Names of modules, classes and functions, in lower case and without underscores around them."""
RETIRED_TYPES = RETIRED | {"line"}
"""Functions may be called `line`: they return a line of text."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the package, with its path in the package."""
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 100
    for path in found:
        yield path.relative_to(SOURCE), ast.parse(path.read_text())


def test_a_module_docstring_opens_with_its_subject():
    first_words = {
        str(path): re.split(r"\W+", (ast.get_docstring(module) or "").lstrip("`"), maxsplit=1)[0]
        for path, module in modules()
    }
    assert {path: word for path, word in first_words.items() if not word or word in QUESTIONS} == {}


def test_no_retired_name_is_used():
    used: list[str] = []
    for path, module in modules():
        if path.stem in RETIRED_TYPES:
            used.append(str(path))
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                retired = RETIRED_TYPES
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                retired = RETIRED
            else:
                continue
            if node.name.strip("_").lower() in retired:
                used.append(f"{path}:{node.lineno}: {node.name}")
    assert used == []
