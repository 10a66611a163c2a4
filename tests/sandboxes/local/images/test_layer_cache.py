"""The layer cache: a layer is built once, and again when one of its inputs changes."""

import os
from typing import Any

Kit = Any

DOCKERFILE = """
FROM any
RUN echo first
COPY dir /dir
RUN echo second
"""
LATER = ["COPY dir /dir", "RUN echo second"]


async def fresh(kit: Kit) -> None:
    kit.write(".dockerignore", "**/*.log")
    kit.write("dir/a.txt", "a")
    kit.write("dir/b.log", "b")
    await kit.build(DOCKERFILE)
    assert kit.made == ["RUN echo first", *LATER]


async def test_a_second_build_uses_the_cache(kit: Kit):
    await fresh(kit)
    first = await kit.build(DOCKERFILE)
    assert kit.made == []
    assert (await kit.build(DOCKERFILE)).key == first.key


async def test_content_mode_name_and_link_rebuild_the_layer_and_later_ones(kit: Kit):
    await fresh(kit)
    path = kit.context / "dir/a.txt"
    changes = [
        lambda: path.write_text("b"),
        lambda: path.chmod(0o755),
        lambda: path.rename(path.with_name("c.txt")),
        lambda: (kit.context / "dir/link").symlink_to("a"),
        lambda: ((kit.context / "dir/link").unlink(), (kit.context / "dir/link").symlink_to("b")),
        lambda: (kit.context / "dir/empty").mkdir(),
    ]
    for change in changes:
        change()
        await kit.build(DOCKERFILE)
        assert kit.made == LATER


async def test_ignored_files_times_and_other_files_rebuild_nothing(kit: Kit):
    await fresh(kit)
    kit.write("dir/b.log", "changed")
    kit.write("dir/c.log", "new")
    kit.write("elsewhere", "new")
    os.utime(kit.context / "dir/a.txt", (1, 1))
    await kit.build(DOCKERFILE)
    assert kit.made == []


async def test_a_changed_line_rebuilds_itself_and_later_lines(kit: Kit):
    await fresh(kit)
    await kit.build(DOCKERFILE.replace("second", "third"))
    assert kit.made == ["RUN echo third"]
    await kit.build(DOCKERFILE.replace("RUN echo first\n", ""))
    assert kit.made == LATER


async def test_variables_user_and_folder_are_part_of_the_key_of_a_run(kit: Kit):
    base = "FROM any\nRUN true\n{}\nRUN echo x"
    await kit.build(base.format("ENV a=1"))
    for line in ("ENV a=2", "ARG b=1", "USER daemon", 'SHELL ["/bin/bash", "-c"]'):
        await kit.build(base.format(line))
        assert kit.made == ["RUN echo x"], line
    await kit.build(base.format("WORKDIR /w"))
    assert kit.made == ["WORKDIR /w", "RUN echo x"]
    for line in ("LABEL a=b", "CMD x", "# comment", "ENV a=1"):
        await kit.build(base.format(line))
    assert kit.made == []


async def test_the_target_of_a_copy_is_part_of_its_key(kit: Kit):
    kit.write("a", "a")
    await kit.build("COPY a /x")
    for line in ("COPY a /y", "COPY a /x/", "COPY --chown=1 a /x", "COPY --chmod=700 a /x"):
        await kit.build(line)
        assert len(kit.made) == 1, line


async def test_two_dockerfiles_share_their_beginning(kit: Kit):
    await fresh(kit)
    await kit.build("FROM any AS other\nRUN echo first\nRUN echo else")
    assert kit.made == ["RUN echo else"]


async def test_a_failed_run_is_not_cached(kit: Kit):
    for _ in range(2):
        await kit.refused("RUN true\nRUN touch /x && false")
    assert kit.made == ["RUN touch /x && false"]
    assert len(list((kit.home / "layers").iterdir())) == 1
