"""Shell scripts are parsed to typed commands."""

from plimsoll.tasks.shell.parser import parse_script


def names(text: str) -> list[str]:
    return [command.unwrapped().name for command in parse_script(text).commands]


def test_commands_come_in_source_order_with_their_lines():
    script = parse_script("#!/bin/bash\ncd /app\nif a; then\n  b | c\nfi\nx=$(d)\n")
    found = [(command.line, command.name) for command in script.commands]
    assert found == [(2, "cd"), (3, "a"), (4, "b"), (4, "c"), (6, "d")]
    assert script.shebang == "/bin/bash"


def test_comments_strings_and_heredocs_are_not_commands():
    text = "# curl a\necho 'curl b; curl c' \"wget d\"\ncat <<'END'\ncurl e\nEND\n"
    assert names(text) == ["echo", "cat"]


def test_commands_in_substitutions_are_found():
    assert names('echo "$(curl a)" `wget b`') == ["echo", "curl", "wget"]
    assert names("diff <(curl a) b") == ["diff", "curl"]
    assert names("cat <<END\n$(curl a)\nEND\n") == ["cat"]


def test_nested_scripts_are_parsed():
    assert names("bash -c 'pip install a && b'") == ["bash", "pip", "b"]
    assert names("sudo sh -ec 'curl a'") == ["sh", "curl"]
    assert names("bash <<'END'\ncurl a\nEND\n") == ["bash", "curl"]
    assert names("eval 'curl a'") == ["eval", "curl"]


def test_words_lose_quotes_and_keep_expansions():
    [command] = parse_script("""run "a b" 'c $d' e\\ f "$G/h" ${I:-j} a"b"'c'""").commands
    assert command.args == ("a b", "c $d", "e f", "$G/h", "${I:-j}", "abc")


def test_wrapped_commands_are_found():
    for text in (
        "sudo -u bob pip install x",
        "env A=1 pip install x",
        "timeout -k 5 60 pip install x",
        "exec /usr/bin/pip install x",
        "nice -n 5 nohup pip install x",
    ):
        [command] = parse_script(text).commands
        assert (command.unwrapped().name, command.unwrapped().args) == ("pip", ("install", "x"))


def test_a_command_with_a_caught_failure_is_guarded():
    text = "a\nb || c\nif d; then e; fi\n! f\nwhile g; do h; done\ni && j\n"
    guarded = {command.name for command in parse_script(text).commands if command.guarded}
    assert guarded == {"b", "d", "f", "g"}


def test_a_pipeline_knows_its_commands():
    first, second = parse_script("curl a | sudo sh >b").commands
    assert (first.pipeline, first.position) == (("curl", "sudo"), 0)
    assert (second.pipeline, second.position) == (("curl", "sudo"), 1)
    assert [redirect.target for redirect in second.redirects] == ["b"]


def test_a_redirect_after_or_belongs_to_the_last_command():
    first, second = parse_script("a || echo 0 >b").commands
    assert not first.redirects
    assert [redirect.target for redirect in second.redirects] == ["b"]


def test_assignments_on_one_line_are_not_part_of_the_next_command():
    script = parse_script("a=1 b=2\necho x\n")
    [command] = script.commands
    assert command.assignments == ()
    assert [(one.name, one.value) for one in script.assignments] == [("a", "1"), ("b", "2")]
    [command] = parse_script("A=1 run x").commands
    assert [one.name for one in command.assignments] == ["A"]


def test_syntax_errors_have_lines_and_the_rest_is_parsed():
    script = parse_script("curl a\nif true; then\n  b\n")
    assert script.errors
    assert "curl" in [command.name for command in script.commands]


def test_line_numbers_of_long_scripts_are_correct():
    script = parse_script("\n" * 2000 + "a\nb é\nc $(d)\nif\n")
    assert [command.line for command in script.commands[:4]] == [2001, 2002, 2003, 2003]
    assert script.errors


def test_odd_texts_do_not_crash():
    for text in ("", "\0", "((((", "$(" * 500, "{ " * 500, "'", "<<", "a" * 100_000, "é\r\n\udce9"):
        parse_script(text.encode("utf-8", "replace").decode())
