"""The layout of a compose project: what its containers get, whatever the file says."""

from pathlib import Path

import yaml

from plimsoll.sandboxes.docker.compose.compose_file import ComposeFile, Tree, table
from plimsoll.sandboxes.docker.compose.layout import Layout, LayoutRequest, make_layout
from plimsoll.sandboxes.docker.container_spec import CAPABILITIES

TEXT = """
services:
  main:
    image: x
    shm_size: 1048576
    tmpfs: ["/m:size=1m"]
    volumes: [{type: bind, source: ./data, target: /data}]
  web:
    image: x
    cap_drop: [KILL]
    cap_add: [CAP_KILL]
    restart: always
    ports: [{target: 80, published: "80"}]
    container_name: web
    env_file: [{path: inside.env}]
    security_opt: ["no-new-privileges:false"]
    volumes: [{type: bind, source: ./data, target: /data}]
"""


def layout_of(folder: Path, text: str) -> Layout:
    path = folder / "docker-compose.yaml"
    path.write_text(text)
    (folder / "data").mkdir(exist_ok=True)
    model: Tree = yaml.safe_load(text)
    request = LayoutRequest(
        file=ComposeFile.read(path),
        model=model,
        project="p",
        labels={"plimsoll.run": "r"},
        images={"web": "sha256:1"},
        block_names=True,
        start_interval=True,
        cpus=4,
    )
    return make_layout(request)


def test_a_service_is_as_hardened_as_a_sandbox(tmp_path: Path):
    web = table(table(layout_of(tmp_path, TEXT).compose["services"])["web"])
    assert web["cap_drop"] == ["ALL"]
    assert web["cap_add"] == sorted(CAPABILITIES)
    assert web["security_opt"] == ["no-new-privileges:true"]
    assert web["pids_limit"] == 4096
    assert (web["image"], web["pull_policy"], web["restart"]) == ("sha256:1", "never", "on-failure")
    assert web["labels"] == {"plimsoll.run": "r"}
    assert web["dns"] == ["127.0.0.1"]
    assert {"ports", "container_name", "env_file", "build", "privileged"} & web.keys() == set()


def test_a_folder_of_the_task_is_mounted_as_a_copy_never_as_itself(tmp_path: Path):
    layout = layout_of(tmp_path, TEXT)
    (volume,) = layout.folders
    assert layout.folders[volume] == tmp_path / "data"
    web = table(table(layout.compose["services"])["web"])
    (mount,) = web["volumes"]  # type: ignore[misc]
    assert (mount["type"], mount["source"]) == ("volume", volume)
    (mount,) = layout.main.mounts
    assert (mount["Type"], mount["Source"]) == ("volume", volume)


def test_main_takes_no_field_from_the_file_that_could_weaken_the_sandbox(tmp_path: Path):
    assert layout_of(tmp_path, TEXT).main.host == {
        "Tmpfs": {"/m": "size=1m"},
        "ShmSize": 1 << 20,
        "Dns": ["127.0.0.1"],
        "DnsOptions": ["timeout:1", "attempts:1"],
    }
