"""Heredocs: COPY <<EOF and RUN <<EOF."""

from pathlib import Path
from typing import Any

Kit = Any


async def test_a_quoted_heredoc_is_copied_unchanged(kit: Kit):
    text = (
        "COPY <<'EOF' /x/a.txt\n$HOME \\n \"q\" 'q'\n\ttab\n# no comment\n\nEOF\nRUN cat /x/a.txt"
    )
    assert await kit.show(text, "cat /x/a.txt") == "$HOME \\n \"q\" 'q'\n\ttab\n# no comment\n"


async def test_an_unquoted_heredoc_is_expanded_and_keeps_its_quotes(kit: Kit):
    text = "ENV who=me\nCOPY <<EOF /x\nit's \"$who\" \\$who ${none:-else} it\\'s\nEOF\n"
    assert await kit.show(text, "cat /x") == "it's \"me\" $who else it's"


async def test_several_heredocs_and_files_go_into_a_folder(kit: Kit):
    kit.write("two", "from the context")
    text = "COPY <<one two <<-three /x/\n1\none\n\t3\n\tthree\n"
    shown = await kit.show(text, "cd /x && for f in *; do echo $f: $(cat $f); done")
    assert shown == "one: 1\nthree: 3\ntwo: from the context"


async def test_a_file_can_have_the_name_of_a_heredoc(kit: Kit):
    kit.write("EOF", "file")
    assert await kit.show("COPY <<EOF /a\ntext\nEOF\nCOPY EOF /b", "cat /a /b") == "text\nfile"


async def test_a_heredoc_has_an_owner_and_a_mode(kit: Kit):
    text = "COPY --chown=daemon --chmod=700 <<EOF /x\nEOF\nCOPY <<EOF /y\nEOF\n"
    assert await kit.show(text, "stat -c '%U %a' /x /y") == "daemon 700\nroot 644"


async def test_the_name_of_a_heredoc_cannot_reach_the_host(kit: Kit, tmp_path: Path):
    reached = tmp_path / "reached"
    for name in (reached, "../reached"):
        message = await kit.refused(f"COPY <<{name} /x/\nbad\n{name}\n")
        assert message == f"Dockerfile:2: <<{name}: the name of a heredoc may not contain /"
    assert not reached.exists()


async def test_a_run_heredoc_is_a_shell_script(kit: Kit):
    text = """
        FROM any
        SHELL ["/bin/bash", "-e", "-c"]
        RUN <<EOF
        who="it's me"
        echo "$who ${BASH_VERSION:+bash}" >/x
        EOF
        """
    assert await kit.show(text, "cat /x") == "it's me bash"


async def test_a_run_heredoc_uses_its_interpreter(kit: Kit):
    text = """
        FROM any
        ENV who=daemon
        USER daemon
        WORKDIR /tmp/w
        RUN <<'EOF'
        #!/usr/bin/env -S python3 -B
        import os, pwd
        name = pwd.getpwuid(os.getuid()).pw_name
        print(os.getcwd(), os.environ["who"], name, file=open("x", "w"))
        EOF
        """
    image = await kit.build(text)
    assert await kit.see(image, "cat x") == "/tmp/w daemon daemon"
    assert await kit.see(image, "ls -A /dev/shm") == ""
    assert "failed (exit 3)" in await kit.refused("RUN <<E\n#!/bin/bash\nexit 3\nE\n")


async def test_a_changed_script_is_run_again(kit: Kit):
    text = "RUN <<EOF\n#!/bin/bash\necho {} >/x\nEOF\n"
    assert await kit.show(text.format(1), "cat /x") == "1"
    assert await kit.show(text.format(2), "cat /x") == "2"


async def test_a_heredoc_is_the_input_of_a_command(kit: Kit):
    text = """
        FROM any
        RUN python3 <<EOF
        open("/x", "w").write("by python")
        EOF
        RUN cat <<A >/a && cat <<'B' >/b
        $HOME
        A
        $HOME
        B
        RUN <<EOF cat >/c
        first
        EOF
        """
    assert await kit.show(text, "cat /x; echo; cat /a /b /c") == "by python\n/root\n$HOME\nfirst"
