"""The check of a compose file before Compose reads it, with hostile files."""

import base64
import os
import subprocess
import time
from pathlib import Path

import pytest

from parts import need, why_no_compose
from plimsoll.core.errors import BuildError, SandboxUnsupported
from plimsoll.sandboxes.docker.compose.compose_command import find_compose
from plimsoll.sandboxes.docker.compose.compose_file import ComposeFile

WEB = "services: {web: {image: x}}\n"
INCLUDE_KEY = base64.b64encode(b"include").decode()
HIDDEN_INCLUDES = {
    "plain": f"include: [other.yaml]\n{WEB}",
    "quoted": f'"include" : [other.yaml]\n{WEB}',
    "in a flow mapping": '{"include": [other.yaml], services: {web: {image: x}}}\n',
    "escaped": f'"incl\\u0075de": [other.yaml]\n{WEB}',
    "an explicit key": f"? include\n: [other.yaml]\n{WEB}",
    "a block scalar as the key": f"? |-\n  include\n: [other.yaml]\n{WEB}",
    "an anchored key": f"&a include: [other.yaml]\n{WEB}",
    "an aliased key": f"x-a: &a include\n*a : [other.yaml]\n{WEB}",
    "a tagged key": f"!!str include: [other.yaml]\n{WEB}",
    "a binary key": f"!!binary {INCLUDE_KEY}: [other.yaml]\n{WEB}",
    "a binary key by a tag handle": (
        f"%TAG !y! tag:yaml.org,2002:\n---\n!y!binary {INCLUDE_KEY}: [other.yaml]\n{WEB}"
    ),
    "a tagged value": f"include: !override [other.yaml]\n{WEB}",
    "a merge": f"x-a: &a {{include: [other.yaml]}}\n<<: *a\n{WEB}",
    "a list of merges": f"x-a: &a {{include: [other.yaml]}}\n<<: [{{}}, *a]\n{WEB}",
    "a second document": f"{WEB}---\ninclude: [other.yaml]\n",
    "after # in a quoted text": (
        '{"x-a": "a\n  # b", include: [other.yaml], services: {web: {image: x}}}\n'
    ),
    "after a comment that ends with CR": f"# c\rinclude: [other.yaml]\r{WEB}",
    "after a comment that ends with NEL": f"# c\x85include: [other.yaml]\n{WEB}",
    "after a comment that ends with LS": f"# c\u2028include: [other.yaml]\n{WEB}",
    "after a comment that ends with PS": f"# c\u2029include: [other.yaml]\n{WEB}",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "docker-compose.yaml"


def read(path: Path, text: str) -> ComposeFile:
    path.write_bytes(text.encode())
    return ComposeFile.read(path)


@pytest.mark.parametrize("text", HIDDEN_INCLUDES.values(), ids=HIDDEN_INCLUDES.keys())
def test_no_spelling_hides_an_included_file(path: Path, text: str):
    with pytest.raises(SandboxUnsupported, match=r"include: services of other files|a tag"):
        read(path, text)


@pytest.mark.parametrize("text", HIDDEN_INCLUDES.values(), ids=HIDDEN_INCLUDES.keys())
def test_every_hidden_include_is_one_that_compose_follows(path: Path, text: str):
    need("compose", why_no_compose())
    (path.parent / "other.yaml").write_text("services: {included: {image: x}}\n")
    path.write_bytes(text.encode())
    command = [find_compose(os.environ).path, "--file", str(path), "config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "included:" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "services: {web: {image: x, extends: {file: /x, service: y}}}\n",
        "x-a: &a {extends: {file: /x, service: y}}\nservices: {web: {image: x, <<: *a}}\n",
        "x-a: &a {extends: {file: /x, service: y}}\nservices: {web: *a}\n",
        "x-a: [{b: &a {extends: {file: /x, service: y}}}]\nservices: {web: *a}\n",
        'services: {web: {image: x, "ext\\x65nds": {file: /x, service: y}}}\n',
    ],
)
def test_no_spelling_hides_an_extended_service(path: Path, text: str):
    with pytest.raises(SandboxUnsupported, match=r":1: extends: services of other files"):
        read(path, text)


@pytest.mark.parametrize("key", ["env_file", "label_file"])
def test_a_file_of_variables_outside_of_the_folder_is_refused_before_compose_reads_it(
    path: Path, key: str
):
    (path.parent / "inside.env").touch()
    (path.parent / "link.env").symlink_to("/etc/hostname")
    file = read(path, WEB)

    def check(value: object) -> None:
        file.check_variable_files({"services": {"web": {key: value}}})

    check("inside.env")
    check([{"path": "inside.env"}, "./inside.env"])
    for value in ("../x", "/etc/hostname", "link.env", ["inside.env", {"path": "../x"}]):
        with pytest.raises(SandboxUnsupported, match="outside of the task's environment folder"):
            check(value)
    with pytest.raises(SandboxUnsupported, match="variables in its path"):
        check("${HOME}/x")


def test_a_key_that_is_no_text_is_refused(path: Path):
    for key in ("? {a: b}\n: c", "? [include]\n: c", "!other include: c"):
        with pytest.raises(SandboxUnsupported, match=r":1: keys must be plain text without a tag"):
            read(path, f"{key}\n{WEB}")


def test_a_key_that_occurs_twice_is_refused_with_its_line(path: Path):
    with pytest.raises(BuildError, match=r"yaml:2: the key services occurs twice"):
        read(path, WEB + WEB)
    with pytest.raises(BuildError, match=r"yaml:3: the key a occurs twice"):
        read(path, f'{WEB}x-a: {{a: 1,\n  "a": 2}}\n')


@pytest.mark.parametrize("text", ["[" * 300_000, "{a: " * 200_000, "- " * 300_000])
def test_deep_nesting_is_refused_quickly(path: Path, text: str):
    started = time.process_time()
    with pytest.raises(BuildError, match="more than 64 nested levels"):
        read(path, text)
    assert time.process_time() - started < 20


def test_aliases_are_not_expanded(path: Path):
    lines = [f"x-{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 200)]
    started = time.process_time()
    read(path, "\n".join(["x-0: &a0 [y]", *lines, WEB]))
    assert time.process_time() - started < 20


def test_an_alias_of_itself_ends(path: Path):
    file = read(path, "x-a: &a {b: *a}\nservices: {web: &w {image: x, <<: *w}}\n")
    assert file.where("services", "web", "image", "no") == f"{path}:2: services.web.image.no"


@pytest.mark.parametrize(
    "data",
    [
        b"services: [",
        b"services: {web: *nothing}",
        b"# \x07\ninclude: [other.yaml]\n",
        b'services: {web: {image: "x\0"}}\n',
        "include: [other.yaml]\n".encode("utf-16"),
        b"# \xed\xa0\x80\n",
        b"# " + b"x" * (1 << 20),
    ],
)
def test_a_file_that_cannot_be_parsed_is_a_build_error(path: Path, data: bytes):
    path.write_bytes(data)
    with pytest.raises(BuildError, match=r"docker-compose\.yaml"):
        ComposeFile.read(path)


def test_harmless_files_are_accepted(path: Path):
    read(path, "\ufeff" + WEB)
    read(path, "")
    read(path, "services: {web: {environment: {A: include, B: 'extends: x'}}} # include: no\n")
    read(path, "services: {web: {command: [sh, -c, 'echo include: x']}, 80: {on: ~}}\n")


def test_lines_are_those_of_the_keys(path: Path):
    file = read(
        path,
        "x-common: &common\n"
        "  privileged: true\n"
        "  # devices: no\n"
        "services:\n"
        "  web:\n"
        '    "image": x\n'
        "    environment: {devices: 1}\n"
        "    <<: [*common]\n"
        "    devices: [/dev/kvm]\n"
        "---\n"
        "services: {web: {pid: host}}\n",
    )
    assert file.where("services", "web", "image") == f"{path}:6: services.web.image"
    assert file.where("services", "web", "devices").startswith(f"{path}:9: ")
    assert file.where("services", "web", "privileged").startswith(f"{path}:2: ")
    assert file.where("services", "web", "pid").startswith(f"{path}:11: ")
    assert file.where("services", "web", "none").startswith(f"{path}:5: ")
    assert file.where("networks") == f"{path}: networks"


def test_variables_are_seen_in_values_also_when_escaped(path: Path):
    assert read(path, "services: {web: {image: '${A}'}}\n").has_variables
    assert read(path, 'services: {web: {image: "\\x24{A}"}}\n').has_variables
    assert not read(path, f"# $A\n{WEB}").has_variables
