"""Shell parser: turns scripts into typed statements with tree-sitter's bash grammar."""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from plimsoll.tasks.shell.nodes import (
    between,
    condition_words,
    file_redirect,
    heredoc_body,
    name_of,
    piped_after_heredoc,
    source,
    word,
)
from plimsoll.tasks.shell.syntax import (
    AndOr,
    Assignment,
    Block,
    Case,
    Command,
    Function,
    Group,
    If,
    Loop,
    Not,
    Pipeline,
    Redirect,
    Script,
    Statement,
    Substitution,
)

__all__ = ["SHELLS", "parse_script"]

SHELLS = {"bash", "sh", "dash", "zsh", "ash"}
MAX_DEPTH = 60
"""Deeper nesting is ignored, which avoids a recursion error."""
NEWLINE_BYTE = ord("\n")
NEWLINE = re.compile(r"(?<!\\)\n")


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse_script(text: str, first_line: int = 1) -> Script:
    """Parse a script. Lines with syntax errors are listed in `errors`; the rest is parsed."""
    text = text.replace("\r\n", "\n")
    data = text.encode("utf-8", "replace")
    root = _parser().parse(data).root_node
    builder = _Builder(_LineIndex.of(data, first_line))
    body = builder.block(root.children, _Context())
    first, _, _ = text.partition("\n")
    return Script(
        body=body,
        commands=tuple(sorted(builder.commands, key=lambda command: command.index)),
        assignments=tuple(builder.assignments),
        functions=tuple(builder.functions),
        errors=tuple(builder.error_lines(root)) if root.has_error else (),
        shebang=first[2:].strip() if first.startswith("#!") else None,
    )


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of a statement."""

    guarded: bool = False
    conditional: bool = False
    pipeline: tuple[str, ...] = ()
    position: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _LineIndex:
    """Line numbers by byte offset; tree-sitter's own rows are unreliable in long texts."""

    first: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes, first: int) -> "_LineIndex":
        return cls(first, tuple(at for at, char in enumerate(data) if char == NEWLINE_BYTE))


class _Builder:
    """Builds statements from nodes and collects the commands."""

    def __init__(self, lines: _LineIndex) -> None:
        self.lines = lines
        self.commands: list[Command] = []
        self.assignments: list[Assignment] = []
        self.functions: list[Function] = []
        self.next_index = 0
        self.builders: dict[str, Callable[[Node, _Context], Statement]] = {
            "case_statement": self._case,
            "c_style_for_statement": self._for,
            "for_statement": self._for,
            "function_definition": self._function,
            "if_statement": self._if,
            "list": self._list,
            "negated_command": self._negated,
            "pipeline": self._pipeline,
            "redirected_statement": self._redirected,
            "select_statement": self._for,
            "subshell": self._group,
            "test_command": self._test,
            "while_statement": self._while,
        }

    def line(self, node: Node) -> int:
        return bisect_left(self.lines.ends, node.start_byte) + self.lines.first

    def block(self, nodes: Sequence[Node], context: _Context) -> Block:
        statements: list[Statement] = []
        for node in nodes:
            if node.is_named:
                statements += self.statements(node, context)
        return Block(tuple(statements))

    def statements(self, node: Node, context: _Context) -> list[Statement]:
        """Statements of a node; more than one if the grammar joined lines."""
        if context.depth > MAX_DEPTH or node.type in ("comment", "heredoc_body"):
            return []
        context = replace(context, depth=context.depth + 1)
        if node.type == "command":
            return self._command(node, context)
        if node.type in ("variable_assignment", "variable_assignments"):
            return list(self._assignments(node, context))
        if node.type in ("declaration_command", "unset_command"):
            return [self._declaration(node, context)]
        if node.type == "compound_statement":
            return [self._compound(node, context)]
        builder = self.builders.get(node.type)
        if builder is not None:
            return [builder(node, context)]
        # An error node or an unknown node type: parse its children.
        return [statement for c in node.named_children for statement in self.statements(c, context)]

    def one(self, node: Node, context: _Context) -> Statement:
        found = self.statements(node, context)
        return found[0] if len(found) == 1 else Group(Block(tuple(found)), subshell=False)

    def error_lines(self, node: Node) -> list[int]:
        if node.is_error or node.is_missing:
            return [self.line(node)]
        return [line for c in node.children if c.has_error for line in self.error_lines(c)]

    # Simple commands

    def _command(self, node: Node, context: _Context) -> list[Statement]:
        before: list[Statement] = []
        assignments: list[Assignment] = []
        children = node.children
        name = node.child_by_field_name("name")
        for child, following in zip(children, [*children[1:], None], strict=True):
            if child.type != "variable_assignment":
                continue
            assignments += self._assignments(child, context)
            # The grammar parses `a=1 b=2` and the next line as one command.
            if following is not None and NEWLINE.search(between(node, child, following)):
                before += assignments
                assignments = []
        if name is None:
            return [*before, *assignments]
        command = self._simple(node, name, context)
        return [*before, self._add(replace(command, assignments=tuple(assignments)))]

    def _simple(self, node: Node, name: Node, context: _Context) -> Command:
        index = self._take_index()
        args = node.children_by_field_name("argument")
        words = (name, *args)
        redirects, heredoc = self._redirects(node.children_by_field_name("redirect"))
        texts = tuple(word(arg) for arg in args)
        command = Command(
            name=word(name),
            args=texts,
            line=self.line(name),
            index=index,
            guarded=context.guarded,
            conditional=context.conditional,
            pipeline=context.pipeline,
            position=context.position,
            redirects=redirects,
            heredoc=heredoc,
            substitutions=tuple(s for w in words for s in self._substitutions(w, context)),
        )
        return replace(command, inner=self._inner(command, context))

    def _inner(self, command: Command, context: _Context) -> Block | None:
        """Parse the script in `bash -c '…'`, `eval '…'` and `bash <<END`."""
        plain = command.unwrapped()
        if plain.name == "eval":
            text = " ".join(plain.args)
        elif plain.name in SHELLS:
            flags = [i for i, arg in enumerate(plain.args) if re.fullmatch(r"-[a-z]*c", arg)]
            if flags and len(plain.args) > flags[0] + 1:
                text = plain.args[flags[0] + 1]
            elif plain.heredoc is not None and not [a for a in plain.args if a[:1] != "-"]:
                text = plain.heredoc
            else:
                return None
        else:
            return None
        if context.depth > MAX_DEPTH // 2:
            return None
        root = _parser().parse(text.encode("utf-8", "replace")).root_node
        outer, self.lines = self.lines, _LineIndex(command.line, ())
        try:
            return self.block(root.children, replace(context, depth=context.depth + 10))
        finally:
            self.lines = outer

    def _take_index(self) -> int:
        self.next_index += 1
        return self.next_index - 1

    def _add(self, command: Command) -> Command:
        self.commands.append(command)
        return command

    def _assignments(self, node: Node, context: _Context) -> list[Assignment]:
        if node.type == "variable_assignments":
            return [a for child in node.named_children for a in self._assignments(child, context)]
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        found = Assignment(
            name=source(name) if name else "",
            value=word(value) if value else "",
            substitutions=tuple(self._substitutions(value, context)) if value else (),
        )
        self.assignments.append(found)
        return [found]

    def _declaration(self, node: Node, context: _Context) -> Statement:
        """`export`, `local` and similar commands set variables as an assignment does."""
        parts: list[Statement] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                parts += self._assignments(child, context)
        keyword = source(node.children[0])
        args = tuple(word(child) for child in node.named_children)
        index = self._take_index()
        command = Command(keyword, args, self.line(node), index, conditional=context.conditional)
        return Group(Block((self._add(command), *parts)), subshell=False)

    def _test(self, node: Node, context: _Context) -> Statement:
        index = self._take_index()
        words: list[str] = []
        for child in node.children[1:-1]:
            words += condition_words(child)
        return self._add(
            Command(
                name=source(node.children[0]),
                args=tuple(words),
                line=self.line(node),
                index=index,
                guarded=context.guarded,
                conditional=context.conditional,
                substitutions=tuple(self._substitutions(node, context)),
            )
        )

    def _substitutions(self, node: Node, context: _Context) -> list[Substitution]:
        if node.type in ("command_substitution", "process_substitution"):
            # The shell itself ignores failures inside a substitution.
            inner = replace(context, guarded=False, pipeline=(), position=0)
            return [Substitution(source(node), self.block(node.children, inner))]
        return [found for c in node.named_children for found in self._substitutions(c, context)]

    def _redirects(self, nodes: Sequence[Node]) -> tuple[tuple[Redirect, ...], str | None]:
        found: list[Redirect] = []
        heredoc: str | None = None
        for node in nodes:
            if node.type == "file_redirect":
                found.append(file_redirect(node))
            elif node.type == "herestring_redirect":
                heredoc = word(node.named_children[-1]) if node.named_children else ""
            elif node.type == "heredoc_redirect":
                heredoc = heredoc_body(node)
                found += [file_redirect(c) for c in node.children if c.type == "file_redirect"]
        return tuple(found), heredoc

    # Compound statements

    def _redirected(self, node: Node, context: _Context) -> Statement:
        body = node.child_by_field_name("body")
        redirects = node.children_by_field_name("redirect")
        files, heredoc = self._redirects(redirects)
        tail = next((r for r in redirects if r.type == "heredoc_redirect"), None)
        piped = piped_after_heredoc(tail)
        follows = tail.child_by_field_name("right") if tail is not None else None
        operator = tail.child_by_field_name("operator") if tail is not None else None
        if body is None:
            return self._add(Command(":", (), self.line(node), self._take_index(), redirects=files))
        inner = context
        if piped:
            names = (name_of(body), *(name_of(part) for part in piped))
            inner = replace(context, pipeline=names)
        if operator is not None and operator.type == "||":
            inner = replace(inner, guarded=True)
        statement = self._with_redirects(self.one(body, inner), files, heredoc, inner)
        if piped:
            rest = [self.one(part, replace(inner, position=at)) for at, part in enumerate(piped, 1)]
            statement = Pipeline((statement, *rest))
        if follows is not None and operator is not None:
            statement = AndOr(statement, operator.type == "&&", self.one(follows, context))
        return statement

    def _with_redirects(
        self,
        statement: Statement,
        files: tuple[Redirect, ...],
        heredoc: str | None,
        context: _Context,
    ) -> Statement:
        if isinstance(statement, Command):
            changed = replace(
                statement,
                redirects=statement.redirects + files,
                heredoc=statement.heredoc if heredoc is None else heredoc,
            )
            if changed.inner is None and heredoc is not None:
                changed = replace(changed, inner=self._inner(changed, context))
            self.commands[self.commands.index(statement)] = changed
            return changed
        if isinstance(statement, Pipeline) and isinstance(statement.parts[-1], Command):
            last = self._with_redirects(statement.parts[-1], files, heredoc, context)
            return Pipeline((*statement.parts[:-1], last))
        # The grammar redirects all of `a || b >f`; a shell redirects b alone.
        if isinstance(statement, AndOr):
            right = self._with_redirects(statement.right, files, heredoc, context)
            return replace(statement, right=right)
        if isinstance(statement, Not):
            return Not(self._with_redirects(statement.body, files, heredoc, context))
        if isinstance(statement, Group):
            return replace(statement, redirects=statement.redirects + files)
        return Group(Block((statement,)), subshell=False, redirects=files)

    def _pipeline(self, node: Node, context: _Context) -> Statement:
        parts = [child for child in node.named_children if child.type != "comment"]
        names = tuple(name_of(part) for part in parts)
        return Pipeline(
            tuple(
                self.one(part, replace(context, pipeline=names, position=at))
                for at, part in enumerate(parts)
            )
        )

    def _list(self, node: Node, context: _Context) -> Statement:
        parts = [child for child in node.named_children if child.type != "comment"]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        if len(parts) != 2:
            return Group(self.block(parts, context), subshell=False)
        is_and = operator == "&&"
        left = self.one(parts[0], context if is_and else replace(context, guarded=True))
        return AndOr(left, is_and, self.one(parts[1], replace(context, conditional=True)))

    def _negated(self, node: Node, context: _Context) -> Statement:
        return Not(self.one(node.named_children[-1], replace(context, guarded=True)))

    def _if(self, node: Node, context: _Context) -> Statement:
        branches: list[tuple[Block, Block]] = []
        otherwise: Block | None = None
        clauses = [node, *(c for c in node.named_children if c.type == "elif_clause")]
        for clause in clauses:
            branches.append(self._branch(clause, context))
        for child in node.named_children:
            if child.type == "else_clause":
                otherwise = self.block(child.named_children, replace(context, conditional=True))
        return If(tuple(branches), otherwise)

    def _branch(self, clause: Node, context: _Context) -> tuple[Block, Block]:
        """The condition before `then` and the body after it."""
        kinds = [child.type for child in clause.children]
        then = kinds.index("then") if "then" in kinds else len(kinds)
        outer = ("elif_clause", "else_clause")
        body = [child for child in clause.children[then + 1 :] if child.type not in outer]
        condition = self.block(clause.children[1:then], replace(context, guarded=True))
        return condition, self.block(body, replace(context, conditional=True))

    def _for(self, node: Node, context: _Context) -> Statement:
        body = node.child_by_field_name("body")
        inner = replace(context, conditional=True)
        return Loop(None, False, self.block(body.named_children if body else (), inner))

    def _while(self, node: Node, context: _Context) -> Statement:
        body = node.child_by_field_name("body")
        guarded = replace(context, guarded=True)
        condition = self.block(node.children_by_field_name("condition"), guarded)
        inner = replace(context, conditional=True)
        statements = self.block(body.named_children if body else (), inner)
        return Loop(condition, node.children[0].type == "until", statements)

    def _case(self, node: Node, context: _Context) -> Statement:
        value = node.child_by_field_name("value")
        inner = replace(context, conditional=True)
        items: list[tuple[tuple[str, ...], Block]] = []
        for item in node.named_children:
            if item.type == "case_item":
                patterns = item.children_by_field_name("value")
                body = [c for c in item.named_children if c not in patterns]
                items.append((tuple(word(p) for p in patterns), self.block(body, inner)))
        return Case(word(value) if value else "", tuple(items))

    def _compound(self, node: Node, context: _Context) -> Statement:
        if node.children[0].type == "((":
            index = self._take_index()
            text = source(node)[2:-2].strip()
            return self._add(
                Command("((", (text,), self.line(node), index, context.guarded, context.conditional)
            )
        return self._group(node, context)

    def _group(self, node: Node, context: _Context) -> Statement:
        return Group(self.block(node.children, context), subshell=node.type == "subshell")

    def _function(self, node: Node, context: _Context) -> Statement:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        inner = replace(context, conditional=True, guarded=False)
        block = self.block((body,) if body else (), inner)
        function = Function(source(name) if name else "", block)
        self.functions.append(function)
        return function
