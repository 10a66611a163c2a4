"""Staging plans: deduplicated requests, for the right Python, with the names of the tasks."""

import pytest

from helpers import write_task_folder
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.packages import host_python
from plimsoll.tasks.assets.plan import image_python, make_plan, unstaged_requests
from plimsoll.tasks.fetches.fetch import Kind


def a_task(folder, name, dockerfile="FROM debian:12\n", test="true", toml=""):
    files = {
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": f"#!/bin/bash\n{test}\n",
    }
    return write_task_folder(folder / name, files, toml)


def required(plan):
    return [one.request for one in plan.requests.values() if not one.optional]


def test_equal_fetches_of_many_tasks_are_one_request(tmp_path):
    test = "uvx --with pytest==8.4.1 pytest /tests"
    tasks = [a_task(tmp_path, name, test=test) for name in ("a", "b", "c")]

    plan = make_plan(tasks)

    (request,) = required(plan)
    assert (request.kind, request.what) == (Kind.WHEELS, ("pytest==8.4.1",))
    assert list(plan.requests[request.key].tasks) == ["a", "b", "c"]
    # uv may be in the image; it is staged anyway.
    assert [w.request.what for w in plan.requests.values() if w.optional] == [("uv",)]


def test_a_uv_that_tasks_install_replaces_the_optional_one(tmp_path):
    test = "curl -LsSf https://example.invalid/uv/0.9.5/install.sh | sh\nuvx pytest"
    plan = make_plan([a_task(tmp_path, "t", test=test)])
    tools = [w.request for w in plan.requests.values() if w.request.kind is Kind.UV_TOOL]
    assert [tool.what for tool in tools] == [("https://example.invalid/uv/0.9.5/install.sh",)]


@pytest.mark.parametrize(
    ("dockerfile", "toml", "python"),
    [
        ("FROM python:3.12-slim\n", "", "3.12"),
        ("FROM docker.io/library/python:3.9\nRUN true\n", "", "3.9"),
        ("FROM ghcr.io/astral-sh/uv:0.5-python3.13-bookworm\n", "", "3.13"),
        ("FROM python:3.8 AS one\nFROM python:3.10\n", "", "3.10"),
        ("FROM python:3.10 AS one\nFROM one\n", "", "3.10"),
        ("FROM debian:12\n", '[environment]\ndocker_image = "python:3.12"\n', "3.12"),
        ("FROM debian:12\n", "", None),
    ],
)
def test_wheels_are_for_the_python_of_the_image(tmp_path, dockerfile, toml, python):
    task = a_task(tmp_path, "t", dockerfile, toml=toml)
    assert image_python(task) == (python or host_python())


def test_an_explicit_python_overrides_that_of_the_image(tmp_path):
    task = a_task(tmp_path, "t", "FROM python:3.12\nRUN pip install six\n")
    pythons = [request.python for request in required(make_plan([task], ["3.10", "3.11"]))]
    assert pythons == ["3.10", "3.11"]


def test_a_package_from_a_repository_requests_the_repository(tmp_path):
    url = "git+https://example.invalid/org/pkg.git@v2#egg=pkg"
    task = a_task(tmp_path, "t", f"FROM debian:12\nRUN pip install '{url}'\n")
    git = [request for request in required(make_plan([task])) if request.kind is Kind.GIT]
    assert [(r.what, r.revision) for r in git] == [(("https://example.invalid/org/pkg",), "v2")]


def test_an_unsupported_fetch_is_listed_with_a_reason(tmp_path):
    dockerfile = "FROM debian:12\nRUN apt-get install -y gcc\nRUN pip install .\n"
    plan = make_plan([a_task(tmp_path, "t", dockerfile, test="curl https://h/$(uname)")])

    assert required(plan) == []
    assert len(plan.unstaged) >= 2
    assert all(one.reason and list(one.tasks) == ["t"] for one in plan.unstaged.values())


def test_fetches_of_tests_alone_are_marked_as_exposed_early(tmp_path):
    early, late = "https://example.invalid/early", "https://example.invalid/late"
    dockerfile = f"FROM debian:12\nRUN curl -O {early}\n"
    plan = make_plan([a_task(tmp_path, "t", dockerfile, f"curl -O {early}\ncurl -O {late}")])

    exposed = {one.request.what[0]: one.exposed_early for one in plan.requests.values()}
    assert exposed == {early: False, late: True}


def test_a_local_source_is_requested_once(tmp_path):
    url = "https://example.invalid/repo"
    sources = LocalSources(git={url: tmp_path, "https://example.invalid/more": tmp_path})
    task = a_task(tmp_path, "t", f"FROM debian:12\nRUN git clone -b v1 {url} /opt/x\n")

    requests = required(make_plan([task], (), sources.requests()))

    assert [(r.what[0], r.revision) for r in requests] == [
        (url, "v1"),
        ("https://example.invalid/more", None),
    ]


def test_unstaged_requests_are_described(tmp_path):
    lines = "RUN git clone https://h.example/o/r /opt/r\nRUN apt-get install -y gcc\n"
    task = a_task(tmp_path, "t", f"FROM debian:12\n{lines}")
    assert unstaged_requests(task, None) == ("git https://h.example/o/r",)
