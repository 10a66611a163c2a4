"""A task's docker-compose.yaml: its YAML nodes, the lines of its keys, and the checks on them.

Compose itself interprets the file. Before it may read it, the file is checked for references that
Compose would follow out of the task's folder: other compose files (`include`, `extends`), and files
of variables (`env_file`, `label_file`).

The check works on YAML nodes, so quotes, escapes, comments, anchors, merges and unusual line breaks
cannot hide a key. A key whose meaning could differ between two parsers is refused: a key with a tag
such as `!!binary`, a key that is not a scalar, and a key that occurs twice in a mapping.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import yaml

from plimsoll.core.errors import BuildError, SandboxUnsupported

__all__ = ["ComposeFile", "Tree", "rows", "table", "tables", "words"]

Tree = dict[str, object]
"""A part of the file, as JSON."""

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
"""Levels of nested collections; the parser is recursive, and no compose file needs as many."""
_OTHER_FILES = frozenset({"include", "extends"})
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_KEY_TAGS = frozenset(
    f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "merge")
)
"""Tags of keys whose value is their text."""
# libyaml is the parser that Compose's own one is derived from.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class ComposeFile:
    """One compose file that passed the checks."""

    path: Path
    documents: Sequence[yaml.Node] = field(repr=False)
    """The root node of each YAML document; Compose merges them."""
    has_variables: bool
    """Whether a value contains `$`, so that it may depend on variables."""

    @classmethod
    def read(cls, path: Path) -> "ComposeFile":
        """Parse and check a file. It reads and parses up to 1 MiB: call it in a thread."""
        try:
            data = path.read_bytes()
            if len(data) > _MAX_BYTES:
                raise BuildError(f"{path}: more than {_MAX_BYTES} bytes")
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BuildError(f"{path}: not UTF-8 text") from None
        except OSError as error:
            raise BuildError(f"{path}: cannot be read: {error.strerror}") from None
        documents = _parse(path, text)
        return cls(path, documents, _check_nodes(path, documents))

    @property
    def folder(self) -> Path:
        return self.path.parent

    def refuse(self, *keys: str, why: str) -> NoReturn:
        """Raise `SandboxUnsupported` for the key at this path of the file."""
        raise SandboxUnsupported(f"{self.where(*keys)}: {why}")

    def where(self, *keys: str) -> str:
        """The location of a key for a message: file, line and dotted path."""
        line = self._line(keys)
        location = f"{self.path}:{line}" if line else f"{self.path}"
        return f"{location}: {'.'.join(keys)}"

    def inside(self, path: str, *keys: str) -> Path:
        """Resolve a path of the file, which must be in the file's folder after links."""
        found = Path(path) if Path(path).is_absolute() else self.folder / path
        real, folder = found.resolve(), self.folder.resolve()
        if not real.is_relative_to(folder):
            self.refuse(*keys, why=f"{path} is outside of the task's environment folder")
        return real

    def check_variable_files(self, raw: Tree) -> None:
        """Check `env_file` and `label_file` of the uninterpolated model, with merges applied."""
        for name, service in tables(raw.get("services")):
            for key in ("env_file", "label_file"):
                for path in _paths(service.get(key)):
                    if "$" in path:
                        self.refuse("services", name, key, why="variables in its path")
                    self.inside(path, "services", name, key)

    def _line(self, keys: Sequence[str]) -> int | None:
        """The line of the longest part of a key path that the file has."""
        found = [_find(document, keys) for document in self.documents]
        best = max(found, key=lambda match: match[0], default=(0, None))
        return best[1]


def _parse(path: Path, text: str) -> list[yaml.Node]:
    try:
        depth = 0
        for event in _events(text):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise BuildError(f"{path}:{line}: more than {_MAX_DEPTH} nested levels")
        return _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise BuildError(f"{location}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise BuildError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


# PyYAML's type stubs leave these two functions untyped.


def _events(text: str) -> Iterator[yaml.Event]:
    return cast("Iterator[yaml.Event]", yaml.parse(text, _Loader))  # pyright: ignore


def _compose(text: str) -> list[yaml.Node]:
    return list(cast("Iterator[yaml.Node]", yaml.compose_all(text, _Loader)))  # pyright: ignore


def _check_nodes(path: Path, documents: Sequence[yaml.Node]) -> bool:
    """Check every key; returns whether a value contains `$`. An aliased node is visited once."""
    has_variables = False
    pending, seen = list(documents), set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_keys(path, node)
            pending += [value for _, value in _pairs(node)]
        elif isinstance(node, yaml.SequenceNode):
            pending += _items(node)
        else:
            has_variables = has_variables or "$" in str(node.value)
    return has_variables


def _check_keys(path: Path, mapping: yaml.MappingNode) -> None:
    names = set[str]()
    for key, _ in _pairs(mapping):
        where = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
            raise SandboxUnsupported(f"{where}: keys must be plain text without a tag")
        name = str(key.value)
        if name in _OTHER_FILES:
            raise SandboxUnsupported(
                f"{where}: {name}: services of other files are not supported: write them here"
            )
        if name in names:
            raise BuildError(f"{where}: the key {name} occurs twice")
        names.add(name)


def _find(node: yaml.Node, keys: Sequence[str]) -> tuple[int, int | None]:
    """The number of leading keys that a document has, and the line of the last of them."""
    line: int | None = None
    for number, name in enumerate(keys):
        pair = next((pair for pair in _merged(node, set()) if pair[0].value == name), None)
        if pair is None:
            return number, line
        line, node = pair[0].start_mark.line + 1, pair[1]
    return len(keys), line


def _merged(node: yaml.Node, seen: set[int]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """The pairs of a mapping, then those of the mappings that `<<` merges into it."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in _items(node):
            yield from _merged(item, seen)
    if isinstance(node, yaml.MappingNode):
        yield from _pairs(node)
        for key, value in _pairs(node):
            if key.tag == _MERGE:
                yield from _merged(value, seen)


def _pairs(mapping: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    return cast("list[tuple[yaml.Node, yaml.Node]]", mapping.value)


def _items(sequence: yaml.SequenceNode) -> list[yaml.Node]:
    return cast("list[yaml.Node]", sequence.value)


def table(value: object) -> Tree:
    """A mapping of the file; any other value is an empty one."""
    return cast(Tree, value) if isinstance(value, dict) else {}


def tables(value: object) -> Iterator[tuple[str, Tree]]:
    """The mappings in a mapping, by name."""
    for name, inner in table(value).items():
        yield name, table(inner)


def rows(value: object) -> list[object]:
    """A list of the file; any other value is an empty one."""
    return cast(list[object], value) if isinstance(value, list) else []


def words(value: object) -> list[str]:
    """A list of strings, or a single string as a list."""
    return [value] if isinstance(value, str) else [str(word) for word in rows(value)]


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for entry in rows(value):
        yield entry if isinstance(entry, str) else str(table(entry).get("path") or "")
