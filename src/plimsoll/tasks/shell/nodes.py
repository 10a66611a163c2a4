"""Contents of single tree-sitter nodes: words, redirects and heredocs.

Quotes are removed from words; expansions are kept as written.
"""

import re

from tree_sitter import Node

from plimsoll.tasks.shell.syntax import Redirect

__all__ = [
    "between",
    "condition_words",
    "file_redirect",
    "heredoc_body",
    "name_of",
    "piped_after_heredoc",
    "source",
    "word",
]

ANSI_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def source(node: Node) -> str:
    """Return the text of a node as written."""
    return (node.text or b"").decode("utf-8", "replace")


def word(node: Node) -> str:
    """Return a word without quotes and escapes, as a shell passes it; expansions stay."""
    kind = node.type
    if kind == "raw_string":
        return source(node)[1:-1]
    if kind == "string":
        return _double_quoted(source(node)[1:-1])
    if kind == "ansi_c_string":
        return re.sub(r"\\(.)", lambda m: ANSI_ESCAPES.get(m[1], m[0]), source(node)[2:-1])
    if kind == "translated_string":
        return _double_quoted(source(node)[2:-1])
    if kind in ("concatenation", "command_name"):
        return "".join(word(child) for child in node.children)
    if kind == "word":
        return re.sub(r"\\(\n|.)", lambda m: "" if m[1] == "\n" else m[1], source(node))
    return source(node)


def _double_quoted(text: str) -> str:
    return re.sub(r'\\([\n"\\`])', lambda m: "" if m[1] == "\n" else m[1], text)


def between(parent: Node, left: Node, right: Node) -> str:
    """Return the text between two children of a node."""
    text = parent.text or b""
    start = parent.start_byte
    return text[left.end_byte - start : right.start_byte - start].decode("utf-8", "replace")


def condition_words(node: Node) -> list[str]:
    """Flatten a test to words: `[ ! "$a" = b ]` is `!`, `$a`, `=`, `b`."""
    compound = ("binary_expression", "unary_expression", "parenthesized_expression")
    if node.type in (*compound, "negation_expression", "ternary_expression"):
        return [text for child in node.children for text in condition_words(child)]
    return [word(node)]


def file_redirect(node: Node) -> Redirect:
    """Return a redirect from or to a file or descriptor."""
    descriptor = node.child_by_field_name("descriptor")
    destination = node.child_by_field_name("destination")
    operators = [child.type for child in node.children if not child.is_named]
    number = source(descriptor) if descriptor is not None else ""
    return Redirect(
        operators[0] if operators else ">",
        int(number) if number.isdecimal() else None,
        word(destination) if destination is not None else "",
    )


def heredoc_body(node: Node) -> str:
    """Return the text of a heredoc."""
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    return source(body) if body is not None else ""


def piped_after_heredoc(node: Node | None) -> list[Node]:
    """Return the commands after the pipe of `cat <<END | sh`, which are heredoc children."""
    if node is None:
        return []
    pipe = next((child for child in node.named_children if child.type == "pipeline"), None)
    return list(pipe.named_children) if pipe is not None else []


def name_of(node: Node) -> str:
    """Return the name of a simple command, redirected or not; "" for any other node."""
    if node.type == "command":
        name = node.child_by_field_name("name")
        return word(name) if name is not None else ""
    if node.type == "redirected_statement":
        body = node.child_by_field_name("body")
        return name_of(body) if body is not None else ""
    return ""
