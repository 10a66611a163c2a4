"""Fetches of a Python file of the tests: library calls and commands that it runs."""

import ast
import shlex
from collections.abc import Iterator

from plimsoll.tasks.fetches.commands import fetch_of_command
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.grader.python_file import PythonFile, dotted
from plimsoll.tasks.shell.options import is_remote
from plimsoll.tasks.shell.parser import parse_script

__all__ = ["python_fetches"]

COMMAND_CALLS = {
    "os.system",
    "os.popen",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.Popen",
    "subprocess.getoutput",
}
HTTP_CALLS = {
    "requests.get",
    "requests.post",
    "requests.head",
    "httpx.get",
    "httpx.post",
    "urllib.request.urlopen",
    "urllib.request.urlretrieve",
    "urlopen",
    "urlretrieve",
}
HUB_CALLS = {
    "snapshot_download",
    "hf_hub_download",
    "load_dataset",
    "huggingface_hub.snapshot_download",
    "huggingface_hub.hf_hub_download",
    "datasets.load_dataset",
}


def python_fetches(source: PythonFile, phase: Phase) -> Iterator[Fetch]:
    """Yield the fetches of a file in source order."""
    if source.tree is None:
        return
    guarded = _guarded(source.tree)
    for call in sorted(source.calls, key=lambda call: (call.lineno, call.col_offset)):
        name = dotted(call.func)
        if name in COMMAND_CALLS:
            yield from _of_command(call, source, phase, call in guarded)
        elif name in HTTP_CALLS and call.args:
            url = _text(call.args[0])
            if url is not None and is_remote(url):
                yield _fetch("python", Kind.URL, url, source, phase, call, call in guarded)
        elif name in HUB_CALLS:
            first = call.args[0] if call.args else _keyword(call, "repo_id")
            repository = _text(first) if first is not None else None
            if repository is not None and not repository.startswith(("/", ".")):
                tool = "huggingface"
                yield _fetch(tool, Kind.OTHER, repository, source, phase, call, call in guarded)


def _fetch(
    tool: str,
    kind: Kind,
    what: str,
    source: PythonFile,
    phase: Phase,
    call: ast.Call,
    guarded: bool,
) -> Fetch:
    return Fetch(tool, kind, (what,), None, None, phase, source.file, call.lineno, guarded)


def _of_command(call: ast.Call, source: PythonFile, phase: Phase, guarded: bool) -> Iterator[Fetch]:
    text = _command_text(call.args[0]) if call.args else None
    if text is None:
        return
    for command in parse_script(text).commands:
        fetch = fetch_of_command(command)
        if fetch is not None:
            yield Fetch(
                tool=fetch.tool,
                kind=fetch.kind,
                what=fetch.what + tuple(f"-r {name}" for name in fetch.requirements),
                revision=fetch.revision,
                target=fetch.target,
                phase=phase,
                file=source.file,
                line=call.lineno,
                guarded=guarded,
            )


def _command_text(node: ast.expr) -> str | None:
    if isinstance(node, ast.List | ast.Tuple):
        words = [_text(item) for item in node.elts]
        # In `[sys.executable, "-m", "pip", …]` the first item is not a literal.
        if words and words[0] is None and dotted(node.elts[0]) == "sys.executable":
            words[0] = "python3"
        if not words or words[0] is None:
            return None
        return shlex.join(word if word is not None else "$UNKNOWN" for word in words)
    return _text(node)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Return all nodes inside a `try` that has a handler."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for statement in node.body
        for inner in ast.walk(statement)
    }
