"""Stages: by name and number, built on demand, and COPY --from."""

from typing import Any

Kit = Any


async def test_stages_by_name_and_number(kit: Kit):
    text = """
        FROM any AS Builder
        RUN mkdir /out && echo one >/out/one
        FROM any
        RUN echo two >/two
        FROM any
        WORKDIR /w
        COPY --from=builder /out/one .
        COPY --from=0 out/one zero
        COPY --from=1 /two ./
        """
    assert await kit.show(text, "cd /w && grep . *") == "one:one\ntwo:two\nzero:one"


async def test_an_unused_stage_is_not_built(kit: Kit):
    text = "FROM any AS a\nRUN false\nFROM any AS b\nRUN true\nFROM b"
    await kit.build(text)
    assert kit.made == ["RUN true"]


async def test_a_stage_inherits_everything_from_its_base_stage(kit: Kit):
    text = """
        FROM any AS base
        ENV who=base
        WORKDIR /w
        SHELL ["/bin/bash", "-c"]
        USER daemon
        FROM base AS last
        RUN echo $who ${BASH_VERSION:+bash} $(id -un) >/tmp/x
        """
    assert await kit.show(text, "pwd; cat /tmp/x") == "/w\nbase bash daemon"


async def test_folders_links_and_modes_are_copied(kit: Kit):
    text = """
        FROM any AS build
        RUN mkdir -p /opt/venv/bin /opt/venv/lib && cd /opt/venv && \\
            ln -s /usr/bin/python3 bin/python && ln -s lib lib64 && ln -s nowhere gone && \\
            echo x >bin/tool && chmod 750 bin/tool && mkdir -m 700 secret && touch .hidden
        FROM any
        COPY --from=build /opt/venv /opt/venv
        COPY --from=build /opt/venv/bin/python /real
        """
    image = await kit.build(text)
    assert await kit.see(image, "cd /opt/venv && find . -printf '%P %y %m %l\\n' | sort") == (
        " d 755 \n.hidden f 644 \nbin d 755 \nbin/python l 777 /usr/bin/python3\n"
        "bin/tool f 750 \ngone l 777 nowhere\nlib d 755 \nlib64 l 777 lib\nsecret d 700 "
    )
    assert await kit.see(image, "/opt/venv/bin/python -c 'print(1)'; stat -c %F /real") == (
        "1\nregular file"
    )


async def test_owners_and_special_modes_are_copied(kit: Kit):
    text = """
        FROM any AS build
        RUN mkdir -p /o/sub && cd /o && touch f && cp /bin/true s && ln -s f l && \\
            chown -h daemon:bin f s l sub && chmod 4755 s && chmod 1777 sub && chmod 500 f
        FROM any
        COPY --from=build /o /x
        COPY --from=build /o/s /y
        """
    shown = await kit.show(text, "cd /x && stat -c '%n %U:%G %a' f s l sub /y /x")
    assert shown == (
        "f daemon:bin 500\ns daemon:bin 4755\nl daemon:bin 777\nsub daemon:bin 1777\n"
        "/y daemon:bin 4755\n/x root:root 755"
    )


async def test_a_pattern_matches_in_another_stage(kit: Kit):
    text = """
        FROM any AS build
        RUN mkdir -p /out/a /out/b '/out/with space' && \\
            touch /out/a/x.whl /out/b/y.whl /out/b/z.txt '/out/with space/.w.whl'
        FROM any
        COPY --from=build /out/*/*.whl /w/
        COPY --from=build /out/none* /w/
        """
    assert await kit.show(text, "ls -A /w") == ".w.whl\nx.whl\ny.whl"


async def test_owner_and_mode_can_be_set(kit: Kit):
    text = """
        FROM any AS build
        RUN mkdir -p /o/sub && touch /o/sub/f
        FROM any
        COPY --from=build --chown=daemon --chmod=750 /o /x
        """
    shown = await kit.show(text, "stat -c '%U %a' /x /x/sub /x/sub/f")
    assert shown == "daemon 755\ndaemon 750\ndaemon 750"


async def test_a_change_in_a_stage_reaches_stages_that_copy_from_it(kit: Kit):
    text = "FROM any AS a\nRUN echo {} >/x\nFROM any\nCOPY --from=a /x /\nRUN cat /x"
    assert await kit.show(text.format(1), "cat /x") == "1"
    assert await kit.show(text.format(2), "cat /x") == "2"
    assert kit.made == ["RUN echo 2 >/x", "COPY /x /", "RUN cat /x"]


async def test_a_missing_source_is_an_error_with_its_line(kit: Kit):
    text = "FROM any AS a\nFROM any\nCOPY --from=a {} /y"
    message = await kit.refused(text.format("/nothere"))
    assert message.startswith("Dockerfile:3: ")
    assert "/nothere: No such file or directory" in message
    assert "COPY --from of the whole root" in await kit.refused(text.format("/"))
    assert await kit.refused("FROM any\nCOPY --from=1 /x /y") == (
        "Dockerfile:2: there is no stage 1 before this one"
    )


async def test_an_image_can_be_copied_from(kit: Kit):
    text = "FROM any\nCOPY --from=other:latest /usr/bin/env /x/"
    assert await kit.show(text, "/x/env echo yes") == "yes"
