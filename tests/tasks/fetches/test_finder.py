"""Fetches of a task: tool, content, destination and revision."""

import pytest

from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase
from plimsoll.tasks.fetches.finder import find_fetches


@pytest.fixture
def fetches(make_task):
    def find(test="#!/bin/bash\n", **parts) -> list[Fetch]:
        return list(find_fetches(make_task(test, **parts)))

    return find


@pytest.fixture
def one(fetches):
    def find(line: str) -> Fetch:
        [found] = fetches(f"#!/bin/bash\n{line}\n")
        return found

    return find


@pytest.mark.parametrize(
    ("line", "tool", "kind", "what"),
    [
        ("git clone https://example.org/a", "git", Kind.GIT, ["https://example.org/a"]),
        ("git clone git@example.org:a/b.git", "git", Kind.GIT, ["git@example.org:a/b.git"]),
        ("curl -LsSf https://example.org/x -o /tmp/x", "curl", Kind.URL, ["https://example.org/x"]),
        ("wget -q https://example.org/x", "wget", Kind.URL, ["https://example.org/x"]),
        ("curl -LsSf https://astral.sh/uv/install.sh | sh", "curl", Kind.UV_TOOL,
         ["https://astral.sh/uv/install.sh"]),
        ("wget -qO- https://astral.sh/uv/0.9.5/install.sh | sh", "wget", Kind.UV_TOOL,
         ["https://astral.sh/uv/0.9.5/install.sh"]),
        ("pip install -q a==8.4.1 'b[c]>=2'", "pip", Kind.WHEELS, ["a==8.4.1", "b[c]>=2"]),
        ("python3 -m pip install -U a", "pip", Kind.WHEELS, ["a"]),
        ("pip3 install --target /x -i https://example.org a b", "pip", Kind.WHEELS, ["a", "b"]),
        ("pip install -r requirements.txt", "pip", Kind.WHEELS, ["a==1", "b"]),
        ("pip install -r elsewhere.txt", "pip", Kind.WHEELS, ["-r elsewhere.txt"]),
        ("uv pip install --system a", "uv", Kind.WHEELS, ["a"]),
        ("uvx pytest@8.4.1 x", "uvx", Kind.WHEELS, ["pytest==8.4.1"]),
        ("uvx -p 3.13 -w pytest==8.4.1 -w ctrf==1 pytest -rA", "uvx", Kind.WHEELS,
         ["pytest==8.4.1", "ctrf==1"]),
        ("uvx --from httpie http", "uvx", Kind.WHEELS, ["httpie"]),
        ("uv tool run ruff check", "uvx", Kind.WHEELS, ["ruff"]),
        ("uv tool install ruff", "uv", Kind.WHEELS, ["ruff"]),
        ("uv run --with pytest pytest x", "uv", Kind.WHEELS, ["pytest"]),
        ("pipx run black .", "pipx", Kind.WHEELS, ["black"]),
        ("npm install -g typescript@5", "npm", Kind.NPM, ["typescript@5"]),
        ("npm ci", "npm", Kind.NPM, []),
        ("npx -y prettier .", "npx", Kind.NPM, ["prettier"]),
        ("sudo apt-get install -y -qq jq git", "apt-get", Kind.OTHER, ["jq", "git"]),
        ("apk add --no-cache jq", "apk", Kind.OTHER, ["jq"]),
        ("go install example.org/x@latest", "go", Kind.OTHER, ["example.org/x@latest"]),
        ("cargo install ripgrep", "cargo", Kind.OTHER, ["ripgrep"]),
        ("huggingface-cli download team/model", "huggingface", Kind.OTHER, ["team/model"]),
    ],
)  # fmt: skip
def test_fetches_of_all_tools(fetches, line, tool, kind, what):
    files = {"tests/requirements.txt": "# two\na==1\nb # the other\n"}
    [found] = fetches(f"#!/bin/bash\n{line}\n", files=files)
    assert (found.tool, found.kind, list(found.what)) == (tool, kind, what)
    assert (found.phase, found.file, found.line) == (Phase.TEST, "tests/test.sh", 2)


@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "git clone ./a b",
        "git -C /app fetch /src",
        "curl http://localhost:80/",
        "curl file:///tmp/x",
        "pip list",
        "pip install --no-index a",
        "pip install ./a.whl /b.whl",
        "PIP_NO_INDEX=1 pip install a",
        "uv run pytest",
        "uvx --offline a",
        "npm run build",
        "npm test",
        "npx --no-install jest",
        "apt-get update",
        "apt-get remove -y jq",
        "go build ./...",
        "go install ./cmd/x",
        "cargo build",
        "echo pip install a",
    ],
)
def test_a_command_without_network_is_not_a_fetch(fetches, line):
    assert fetches(f"#!/bin/bash\n{line}\n") == []


@pytest.mark.parametrize(
    ("run", "target", "revision"),
    [
        ("git clone https://example.org/a.git", "/src/a", None),
        ("git clone https://example.org/a /opt/a", "/opt/a", None),
        ("git clone https://example.org/a /o/a/ && cd /o/a && git checkout -q abc", "/o/a", "abc"),
        ("git clone -b v1 https://example.org/a b", "/src/b", "v1"),
        ("cd /o && git clone https://example.org/a && git -C a reset --hard abc", "/o/a", "abc"),
        ("git -C /opt clone https://example.org/a", "/opt/a", None),
        ("git clone https://example.org/a && cd a && git checkout -b work", "/src/a", None),
        ("git clone ${BASE}/a $DIR && cd $DIR && git checkout ${REV}", "/opt/d", "abc"),
        ("git clone https://example.org/a\nWORKDIR /src/a\nRUN git checkout abc", "/src/a", "abc"),
        ("mkdir /x && cd /x && git init && git remote add origin https://example.org/a && "
         "git fetch --depth 1 origin abc && git checkout FETCH_HEAD", "/x", "abc"),
    ],
)  # fmt: skip
def test_a_clone_has_its_destination_and_revision(fetches, run, target, revision):
    dockerfile = "FROM debian\nARG REV=abc\nENV BASE=https://example.org DIR=/opt/d\nWORKDIR /src\n"
    [found] = fetches(dockerfile=f"{dockerfile}RUN {run}\n")
    assert found.what == (found.what[0],)
    assert found.what[0].startswith("https://example.org/a")
    assert (found.target, found.revision, found.phase) == (target, revision, Phase.BUILD)


def test_a_fetch_in_a_dockerfile_has_the_line_of_its_command(fetches):
    dockerfile = (
        "FROM debian\n# comment\nRUN --mount=type=cache,target=/x apt-get update && \\\n"
        "    # why\n\n    apt-get install -y jq \\\n      git && \\\n    curl -fO https://example.org/x\n"
        "RUN <<END\nset -e\nwget https://example.org/y\nEND\n"
        'RUN ["pip", "install", "a"]\nADD https://example.org/z /z\n'
    )
    found = [(fetch.tool, fetch.line, fetch.target) for fetch in fetches(dockerfile=dockerfile)]
    assert found == [
        ("apt-get", 6, None),
        ("curl", 8, "/x"),
        ("wget", 11, "/y"),
        ("pip", 13, None),
        ("curl", 14, "/z"),
    ]
    [jq, *_] = fetches(dockerfile=dockerfile)
    assert jq.what == ("jq", "git")


def test_fetches_of_all_phases_are_found(fetches):
    toml = (
        '[environment.healthcheck]\ncommand = "curl -f https://example.org/health"\n'
        '[verifier]\n[[verifier.collect]]\ncommand = "wget https://example.org/c"\n'
        '[[steps]]\nname = "one"\n'
    )
    files = {
        "steps/one/instruction.md": "x",
        "steps/one/workdir/setup.sh": "#!/bin/bash\ncurl -O https://example.org/s\n",
        "steps/one/solution/solve.sh": "#!/bin/bash\npip install numpy\n",
        "steps/one/tests/test_a.py": "import requests\n\nrequests.get('https://example.org/t')\n",
    }
    dockerfile = "FROM debian\nRUN pip install a\n"
    found = fetches("#!/bin/bash\nuvx pytest\n", toml=toml, files=files, dockerfile=dockerfile)
    assert [(fetch.phase, fetch.file, fetch.line) for fetch in found] == [
        (Phase.BUILD, "environment/Dockerfile", 2),
        (Phase.SET_UP, "steps/one/workdir/setup.sh", 2),
        (Phase.SET_UP, "task.toml", 2),
        (Phase.AGENT, "steps/one/solution/solve.sh", 2),
        (Phase.TEST, "tests/test.sh", 2),
        (Phase.TEST, "steps/one/tests/test_a.py", 3),
        (Phase.TEST, "task.toml", 4),
    ]


def test_fetches_of_python_files_are_found(fetches):
    text = (
        "import subprocess, sys, os, urllib.request\n"
        "from huggingface_hub import snapshot_download\n"
        'subprocess.run([sys.executable, "-m", "pip", "install", "numpy"])\n'
        'os.system("git clone https://example.org/a")\n'
        'urllib.request.urlopen("https://example.org/x")\n'
        'snapshot_download("team/model")\n'
        'subprocess.run(["python3", "-c", "import requests"])\n'
        'print("pip install x")\n'
        "# os.system('pip install y')\n"
    )
    found = fetches(files={"tests/grade.py": text})
    assert [(fetch.tool, fetch.what, fetch.line) for fetch in found] == [
        ("pip", ("numpy",), 3),
        ("git", ("https://example.org/a",), 4),
        ("python", ("https://example.org/x",), 5),
        ("huggingface", ("team/model",), 6),
    ]


def test_a_fetch_with_a_caught_failure_is_guarded(one):
    assert one("curl -fO https://example.org/x || exit 1").guarded
    assert one("if pip install a; then true; fi").guarded
    assert not one("pip install a").guarded
