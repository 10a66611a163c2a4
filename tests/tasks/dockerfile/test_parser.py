"""Dockerfiles are parsed by Docker's rules, with correct line numbers."""

import pytest

from plimsoll.core.errors import TaskError
from plimsoll.tasks.dockerfile.parser import (
    Dockerfile,
    Flag,
    Heredoc,
    Instruction,
    parse_dockerfile,
)
from plimsoll.tasks.dockerfile.words import (
    expand_words,
    parse_arg,
    parse_pairs,
    split_words,
)


def parse(text: str) -> Dockerfile:
    return parse_dockerfile(text, "Dockerfile")


def second(text: str) -> Instruction:
    """The instruction after a FROM on the first line."""
    return parse(f"FROM a\n{text}").instructions[1]


def error_of(text: str) -> str:
    with pytest.raises(TaskError) as caught:
        parse(text)
    return str(caught.value)


def test_instructions_have_keywords_arguments_and_lines():
    found = parse("# a comment\n\nfrom python:3 AS base\n  run pip  install x\n\nUSER app\n")
    assert [(i.keyword, i.args, i.line, i.end_line) for i in found.instructions] == [
        ("FROM", "python:3 AS base", 3, 3),
        ("RUN", "pip  install x", 4, 4),
        ("USER", "app", 6, 6),
    ]
    assert found.escape == "\\"


def test_continuation_lines_are_joined_and_comments_between_them_dropped():
    run = second("RUN a && \\\n  # why\n\n    b && \\   \n\tc\nUSER x")
    assert run.args == "a &&     b && \tc"
    assert (run.line, run.end_line) == (2, 6)


def test_a_hash_within_a_line_is_not_a_comment():
    assert second("RUN echo a # b").args == "echo a # b"


def test_a_doubled_escape_does_not_continue_a_line():
    found = parse("FROM a\nRUN echo \\\\\nUSER x").instructions
    assert [i.keyword for i in found] == ["FROM", "RUN", "USER"]


def test_a_continuation_at_the_end_of_the_file_is_harmless():
    assert second("RUN a \\").args == "a"


def test_the_escape_directive_changes_the_character():
    found = parse("# syntax=docker/dockerfile:1\n# escape=`\nFROM a\nRUN dir C:\\ `\n  /s\n")
    assert found.escape == "`"
    assert found.instructions[1].args == "dir C:\\   /s"


def test_a_directive_after_another_line_is_a_comment():
    assert parse("# hello\n# escape=`\nFROM a").escape == "\\"
    assert parse("\n# escape=`\nFROM a").escape == "\\"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_endings_and_a_byte_order_mark_change_nothing(ending: str):
    text = "\ufeffFROM a\nRUN x \\\n  y\nCOPY <<E /f\nbody\nE\n".replace("\n", ending)
    run, copy = parse(text).instructions[1:]
    assert run.args == "x   y"
    assert copy.heredocs[0].body == "body\n"


def test_flags_come_before_arguments_in_order():
    run = second("RUN --mount=type=cache,target=/a --network=none --mount=type=tmpfs cmd --opt=1")
    assert run.flags == (
        Flag("mount", "type=cache,target=/a"),
        Flag("network", "none"),
        Flag("mount", "type=tmpfs"),
    )
    assert run.args == "cmd --opt=1"
    assert run.flag("network") == "none"
    assert run.flag_values("mount") == ("type=cache,target=/a", "type=tmpfs")
    copy = second('COPY --link --chown="a b" --from=base /x /y')
    assert (copy.flag("link"), copy.flag("chown"), copy.flag("from")) == ("", "a b", "base")
    assert copy.flag("chmod") is None
    assert copy.args == "/x /y"


def test_only_some_instructions_have_flags():
    assert second("ENTRYPOINT --help").args == "--help"


def test_the_json_form_is_a_list_of_texts_and_anything_else_is_shell():
    assert second('CMD ["a", "b c"]').json_form == ("a", "b c")
    assert second('COPY ["a b", "/c"]').json_form == ("a b", "/c")
    assert second("RUN [ -f x ] && y").json_form is None
    assert second("CMD ['a']").json_form is None
    assert second("CMD [1]").json_form is None
    assert second('RUN ["a", \\\n "b"]').json_form == ("a", "b")
    assert second('ENV ["a"]=b').json_form is None


def test_a_heredoc_follows_its_instruction():
    found = parse("FROM a\nRUN <<EOF\n# kept\n\n  echo $x \\\nEOF\nUSER b").instructions
    assert found[1].heredocs == (Heredoc("EOF", "# kept\n\n  echo $x \\\n", True, False),)
    assert found[1].args == "<<EOF"
    assert (found[1].line, found[1].end_line) == (2, 6)
    assert (found[2].keyword, found[2].line) == ("USER", 7)


def test_several_heredocs_follow_in_order():
    run = second("RUN cat <<A 3<<'B' > /x\n1\nA\n$2\nB\n")
    assert run.heredocs == (Heredoc("A", "1\n", True, False), Heredoc("B", "$2\n", False, False))


def test_a_dash_strips_leading_tabs_from_body_and_end():
    run = second('RUN sh <<-"EOF"\n\t\ta\n\t b\n\tEOF\n')
    assert run.heredocs == (Heredoc("EOF", "a\n b\n", False, True),)


@pytest.mark.parametrize(
    "args",
    ['echo "<<EOF"', "echo '<<EOF'", "echo $((1<<4))", "cat <<<word", "echo 1 << 4", "echo a<<EOF"],
)
def test_text_that_looks_like_a_heredoc_is_not_one(args: str):
    assert second(f"RUN {args}\nUSER x").heredocs == ()


def test_only_run_copy_and_add_have_heredocs():
    assert second("CMD cat <<EOF").heredocs == ()
    assert len(second("ADD <<a <<b /dir/\nx\na\ny\nb").heredocs) == 2
    assert second("ONBUILD RUN cat <<EOF\nx\nEOF").heredocs[0].body == "x\n"


def test_onbuild_is_a_keyword_of_its_own():
    onbuild = second("ONBUILD COPY . /app")
    assert (onbuild.keyword, onbuild.args) == ("ONBUILD", "COPY . /app")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\n\nRUM x", "Dockerfile:3: unknown instruction RUM (did you mean RUN?)"),
        ("FROM a\nZZZZ", "Dockerfile:2: unknown instruction ZZZZ"),
        ("RUN x\nFROM a", "Dockerfile:1: RUN before FROM; only ARG is allowed there"),
        ("ARG a\nRUN x", "Dockerfile:2: RUN before FROM; only ARG is allowed there"),
        ("FROM a\nRUN", "Dockerfile:2: RUN needs an argument"),
        ("FROM a\nRUN --network=none", "Dockerfile:2: RUN needs an argument"),
        ("FROM a\nONBUILD", "Dockerfile:2: ONBUILD needs an argument"),
        ("FROM a\nCOPY x", "Dockerfile:2: COPY needs a source and a destination"),
        ("FROM a b", "Dockerfile:1: expected FROM image, or FROM image AS name, got FROM a b"),
        ("FROM a\nSHELL bash", 'Dockerfile:2: expected SHELL ["program", "argument"]'),
        ("FROM a\n\nRUN <<EOF\nx\n EOF", "Dockerfile:3: the heredoc <<EOF is not closed"),
        ("# escape=x\nFROM a", "Dockerfile:1: escape must be \\ or `, not x"),
        ("# escape=`\n# escape=`\nFROM a", "Dockerfile:2: duplicate directive escape"),
        ("", "Dockerfile: no FROM instruction"),
        ("ARG a=1\n# only\n", "Dockerfile: no FROM instruction"),
    ],
)
def test_an_error_has_its_line(text: str, message: str):
    assert error_of(text).startswith(message)


def test_arg_may_come_before_from():
    found = parse("ARG v=3\nFROM a:${v}\nFROM b").instructions
    assert [i.keyword for i in found] == ["ARG", "FROM", "FROM"]


ENV = {"x": "1", "empty": "", "sp": "a b", "long_name": "L"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$x", "1"),
        ("a${x}b", "a1b"),
        ("$long_name-", "L-"),
        ("$gone|${gone}", "|"),
        ("${gone:-d}", "d"),
        ("${empty:-d}", "d"),
        ("${empty-d}", ""),
        ("${gone-d}", "d"),
        ("${x:-d}", "1"),
        ("${x:+d}", "d"),
        ("${gone:+d}", ""),
        ("${empty:+d}${empty+e}", "e"),
        ("${gone:-${x}/$long_name}", "1/L"),
        ("${gone:-}", ""),
        ("${x:?no}", "1"),
        ("$sp", "a b"),
        ("'$x'", "$x"),
        ("\"$x 'y'\"", "1 'y'"),
        (r"\$x", "$x"),
        (r'"\$x \" \\ \n"', r"$x " + '" \\ ' + r"\n"),
        (r"a\ b", "a b"),
        (r"'a\b'", r"a\b"),
        ("cost: 5$", "cost: 5$"),
        ("$/x", "$/x"),
        ('""', ""),
    ],
)
def test_variables_expand_as_docker_does(text: str, expanded: str):
    assert expand_words(text, ENV) == expanded


def test_expansion_uses_the_escape_character_of_the_file():
    assert expand_words("C:\\dir `$x", ENV, "`") == "C:\\dir $x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'a", "the quote ' is not closed"),
        ('"a', 'the quote " is not closed'),
        ("${x", "not supported"),
        ("${}", "${ without a name"),
        ("${x:-d", "} is missing"),
        ("${x%y}", "${x%…} is not supported"),
        ("${gone:?give it}", "gone is not set: give it"),
    ],
)
def test_a_failed_expansion_is_an_error_with_its_location(text: str, message: str):
    with pytest.raises(TaskError, match=r"^D:7: ") as caught:
        expand_words(text, ENV, where="D:7")
    assert message in str(caught.value)


def test_words_split_outside_quotes_and_keep_them():
    assert split_words('a  \'b c\' "d \\" e"f g\\ h') == ("a", "'b c'", '"d \\" e"f', "g\\ h")
    with pytest.raises(TaskError, match="D:3: the quote"):
        split_words("a 'b", where="D:3")


def test_env_has_two_forms():
    assert parse_pairs('k=v k2="v 2" k3=a\\ b e=') == (
        ("k", "v"),
        ("k2", '"v 2"'),
        ("k3", "a\\ b"),
        ("e", ""),
    )
    assert parse_pairs("k  the rest = it ") == (("k", "the rest = it"),)
    assert parse_pairs("PATH=/a:$PATH") == (("PATH", "/a:$PATH"),)
    for wrong in ("k", "a=1 b", "=x"):
        with pytest.raises(TaskError, match="D:1: expected name=value"):
            parse_pairs(wrong, where="D:1")


def test_arg_has_names_with_and_without_defaults():
    assert parse_arg('a b=1 c="x y" d=') == (("a", None), ("b", "1"), ("c", '"x y"'), ("d", ""))
    with pytest.raises(TaskError, match="expected name or name=default"):
        parse_arg("=1")
