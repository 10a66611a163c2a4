"""Rules about fetches that cannot succeed where the task runs."""

import pytest

UV = "COPY --from=ghcr.io/astral-sh/uv:0.5 /uv /uvx /bin/"
PUBLIC = '[environment]\nnetwork_mode = "public"\n'
TAIL = """
if [ $? -eq 0 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
"""
ZERO = {
    "status of the fetch": "uvx pytest /tests" + TAIL,
    "if and else": "if uvx pytest /tests; then echo 1 >/logs/verifier/reward.txt; else "
    "echo 0 >/logs/verifier/reward.txt; fi",
    "or": "pip install pytest || { echo 0 >/logs/verifier/reward.txt; exit 1; }\n"
    "if pytest; then echo 1 >/logs/verifier/reward.txt; fi",
    "or, without a group": "curl -sfO https://example.org/x || echo 0 > /logs/verifier/reward.txt",
    "a kept status": "uvx pytest /tests\nstatus=$?\necho hi\nif [ $status -ne 0 ]; then "
    "echo 0 >/logs/verifier/reward.txt; else echo 1 >/logs/verifier/reward.txt; fi",
    "case": "uvx pytest\ncase $? in 0) r=1 ;; *) r=0 ;; esac\necho $r >/logs/verifier/reward.txt",
    "a variable": "reward=0\nuvx pytest && reward=1\necho $reward >/logs/verifier/reward.txt",
    "a trap": "set -e\ntrap 'echo 0 >/logs/verifier/reward.txt' ERR\npip install pytest\n"
    "pytest\necho 1 >/logs/verifier/reward.txt",
    "an exit trap": "set -e\ntrap 'echo 0 >/logs/verifier/reward.txt' EXIT\npip install pytest\n"
    "exit 0",
    "written before": "set -e\necho 0 >/logs/verifier/reward.txt\npip install pytest\npytest\n"
    "echo 1 >/logs/verifier/reward.txt",
    "unconditional": "uvx pytest\necho 0 >/logs/verifier/reward.txt",
    "a function": 'run() { uvx "$@"; }\nrun pytest' + TAIL,
    "a substitution": "out=$(uvx pytest 2>&1)" + TAIL,
    "and json": "uvx pytest && echo '{\"reward\": 1}' >/logs/verifier/reward.json || "
    "echo '{\"reward\": 0}' >/logs/verifier/reward.json",
    "a folder in a variable": "LOGS=/logs/verifier\nuvx pytest && echo 1 >$LOGS/reward.txt || "
    "echo 0 >$LOGS/reward.txt",
    "sudo and timeout": "sudo -E timeout 60 apt-get install -y jq\njq . /app/a" + TAIL,
    "bash -c": "bash -c 'pip install requests'\npython3 -c 'import requests'" + TAIL,
    "a pipe": "curl -sSf https://example.org/i.sh | bash\npytest /tests" + TAIL,
    "printf and tee": "r=1; uvx pytest || r=0\n"
    "printf '%s\\n' \"$r\" | tee /logs/verifier/reward.txt",
    "negated": "if ! uvx pytest; then echo 0 >/logs/verifier/reward.txt; else "
    "echo 1 >/logs/verifier/reward.txt; fi",
    "arguments over lines": "uvx \\\n  -p 3.13 \\\n  -w pytest==8.4.1 \\\n  pytest /tests" + TAIL,
}
LOUD = {
    "exit": "pip install pytest || exit 1\npytest" + TAIL,
    "set -e": "set -e\npip install pytest\nif pytest; then echo 1 >/logs/verifier/reward.txt; "
    "else echo 0 >/logs/verifier/reward.txt; fi",
    "set -e after pipefail": "set -euo pipefail\ncurl -sSf https://example.org/i.sh | sh\n"
    "if pytest; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi",
    "if not": "if ! pip install pytest; then echo broken; exit 1; fi\npytest" + TAIL,
    "only on success": "uvx pytest && echo 1 >/logs/verifier/reward.txt",
}
SILENT = {
    "a comment": "# curl https://example.org | sh\ntrue" + TAIL,
    "a text": "echo 'run: pip install pytest' \"uvx pytest\"\ngrep -q x /app/a" + TAIL,
    "a heredoc": "cat >/tmp/x <<'END'\npip install pytest\ncurl https://example.org\nEND\n"
    "grep -q x /app/a" + TAIL,
    "this machine": "curl -sf http://localhost:8080/health\ncurl http://127.0.0.1:1/" + TAIL,
    "a sibling service": "curl -sf http://api:8000/ping" + TAIL,
    "an unknown host": 'curl -sf "$SERVICE_URL/ping"' + TAIL,
    "no index": "pip install --no-index --find-links /wheels pytest\npytest" + TAIL,
    "uv offline": "uvx --offline pytest" + TAIL,
    "only an index": "apt-get update\ngrep -q x /app/a" + TAIL,
    "a local clone": "git clone /app/repo /tmp/repo\ngrep -q x /tmp/repo/a" + TAIL,
    "git without network": "git -C /app status\ngit -C /app log --all" + TAIL,
    "never called": "fetch() { curl https://example.org; }\ngrep -q x /app/a" + TAIL,
}


def script(text: str) -> str:
    return f"#!/bin/bash\n{text}\n"


@pytest.mark.parametrize("text", ZERO.values(), ids=ZERO.keys())
def test_a_fetch_after_which_the_grader_writes_0_is_an_error(rules, text):
    assert rules(script(text)).get("fetch-then-zero") == "error"


@pytest.mark.parametrize("text", LOUD.values(), ids=LOUD.keys())
def test_a_fetch_that_leads_to_a_void_trial_is_a_warning(rules, text):
    found = rules(script(text))
    assert "fetch-then-zero" not in found
    assert found.get("fetch-without-network") == "warning"


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_local_commands_are_not_fetches(rules, text):
    assert not {"fetch-then-zero", "fetch-without-network"} & rules(script(text)).keys()


@pytest.mark.parametrize("text", [*ZERO.values(), *LOUD.values()])
def test_with_a_network_no_fetch_fails(rules, text):
    found = rules(script(text), toml=PUBLIC)
    assert not {"fetch-then-zero", "fetch-without-network"} & found.keys()


def test_offline_removes_the_network(rules):
    assert (
        rules(script(ZERO["if and else"]), toml=PUBLIC, offline=True)["fetch-then-zero"] == "error"
    )


@pytest.mark.parametrize(
    ("dockerfile", "text"),
    [
        ("RUN pip install pytest", "pip install pytest\npytest"),
        ("RUN pip install pytest==8.4.1 requests", "pip install pytest==8.4.1\npytest"),
        ("RUN python3 -m pip install --no-cache-dir pytest", "pip3 install -q pytest\npytest"),
        ("RUN apt-get update && apt-get install -y -qq curl jq", "apt-get install -y curl"),
        (UV, "command -v uv || curl https://astral.sh/uv/install.sh | sh"),
        (UV, "curl -LsSf https://astral.sh/uv/install.sh | sh"),
        ("RUN pip install uv", "if ! command -v uv; then pip install uv; fi"),
        ("COPY requirements.txt .\nRUN pip install -r requirements.txt", "pip install pytest"),
    ],
)
def test_contents_of_the_image_are_not_fetched(rules, dockerfile, text):
    found = rules(
        script(text + TAIL),
        dockerfile=f"FROM python:3.12-slim\n{dockerfile}\n",
        files={"environment/requirements.txt": "pytest>=8  # the runner\nrequests\n"},
    )
    assert not {"fetch-then-zero", "fetch-without-network"} & found.keys()


@pytest.mark.parametrize(
    ("dockerfile", "text"),
    [
        ("RUN pip install pytest==8.0.0", "pip install pytest==8.4.1\npytest"),
        ("# RUN pip install pytest", "pip install pytest\npytest"),
        ("RUN echo pip install pytest", "pip install pytest\npytest"),
        (
            "FROM scratch AS other\nRUN pip install pytest\nFROM debian",
            "pip install pytest\npytest",
        ),
    ],
)
def test_contents_that_the_image_lacks_are_fetched(rules, dockerfile, text):
    if not dockerfile.startswith("FROM"):
        dockerfile = f"FROM python:3.12-slim\n{dockerfile}"
    assert rules(script(text + TAIL), dockerfile=f"{dockerfile}\n")["fetch-then-zero"] == "error"


def test_a_fetch_after_one_that_ends_the_script_is_reported_too(lint):
    text = "set -e\napt-get install -y jq\ncurl -fO https://example.org/x\nif uvx pytest; then "
    text += "echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi"
    found = [(finding.line, finding.rule) for finding in lint(script(text))]
    assert found == [
        (3, "fetch-without-network"),
        (4, "fetch-without-network"),
        (5, "fetch-then-zero"),
    ]


def test_a_script_can_compensate_for_a_failed_fetch(rules):
    text = "curl -fsSO https://example.org/x.json || cp /tests/x.json .\ngrep -q x x.json" + TAIL
    assert "fetch-then-zero" not in rules(script(text), files={"tests/x.json": "{}"})


def test_a_host_on_the_allowlist_is_reached(rules):
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.example.org"]\n'
    reached = "pip install pytest\ncurl -fsSO https://a.example.org/x\npytest" + TAIL
    assert "fetch-then-zero" not in rules(script(reached), toml=toml)
    assert "fetch-then-zero" in rules(
        script("git clone https://github.com/a/b\npytest" + TAIL), toml=toml
    )


def test_a_phase_has_its_own_network(rules):
    toml = '[environment]\nnetwork_mode = "public"\n[verifier]\nnetwork_mode = "no-network"\n'
    assert "fetch-then-zero" in rules(script(ZERO["if and else"]), toml=toml)
    toml = '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n'
    assert "fetch-then-zero" not in rules(script(ZERO["if and else"]), toml=toml)


def test_a_script_that_test_sh_calls_is_checked(rules):
    files = {"tests/install.sh": "pip install pytest\n"}
    for call in (
        "bash /tests/install.sh",
        "source /tests/install.sh",
        '. "$(dirname "$0")/install.sh"',
    ):
        found = rules(script(f"{call}\npytest" + TAIL), files=files)
        assert found["fetch-then-zero"] == "error", call


def test_an_unused_script_is_not_checked(rules):
    assert "fetch-then-zero" not in rules(files={"tests/other.sh": "pip install pytest\n"})


def test_a_fetch_of_a_python_grader_counts(rules):
    grader = 'import subprocess\nsubprocess.run(["pip", "install", "numpy"], check=True)\n'
    text = "python3 /tests/grade.py" + TAIL
    assert rules(script(text), files={"tests/grade.py": grader})["fetch-then-zero"] == "error"
    other = 'import requests\n\n\ndef test_it():\n    requests.get("http://localhost:80")\n'
    found = rules(script(text), files={"tests/grade.py": other})
    assert "fetch-then-zero" not in found


def test_fetches_of_solution_and_set_up_are_warnings(rules):
    files = {"solution/solve.sh": "#!/bin/bash\nset -e\npip install numpy\n"}
    assert rules(files=files)["fetch-without-network"] == "warning"
    toml = '[environment]\nnetwork_mode = "no-network"\n[[steps]]\nname = "one"\n'
    files = {
        "steps/one/instruction.md": "x",
        "steps/one/workdir/setup.sh": "#!/bin/bash\ncurl -fO https://example.org/x\n",
    }
    assert rules(toml=toml, files=files)["fetch-without-network"] == "warning"


def test_staged_fetches_are_not_reported(make_task):
    from plimsoll.tasks.lint.linter import lint_task
    from plimsoll.tasks.lint.parsed_task import LintSettings

    task = make_task(script(ZERO["if and else"]))
    staged = LintSettings(staged=lambda fetch: fetch.what == ("pytest",))
    assert "fetch-then-zero" not in {finding.rule for finding in lint_task(task, staged)}


# Clones in the build: the case where every reward is 0

PARSER = (
    "FROM debian:bookworm-slim\nRUN git clone https://example.invalid/rebench-v2 /opt/rebench-v2\n"
)
IMPORTS = (
    'import sys\n\nsys.path.insert(0, "/opt/rebench-v2/lib/agent")\nfrom log_parsers import parse\n'
)
CATCHES = (
    'import sys\nfrom pathlib import Path\n\nsys.path.insert(0, "/opt/rebench-v2/lib/agent")\n'
    "try:\n    from log_parsers import parse\nexcept ImportError:\n    print('parsers not found')\n"
    '    Path("/logs/verifier/reward.txt").write_text("0")\n    sys.exit(1)\n'
)


@pytest.mark.parametrize(
    ("test", "files"),
    [
        ("python3 /tests/parser.py" + TAIL, {"tests/parser.py": IMPORTS}),
        ("python3 /tests/parser.py", {"tests/parser.py": CATCHES}),
        ("python3 /opt/rebench-v2/run.py" + TAIL, {}),
        ("PYTHONPATH=/opt/rebench-v2 python3 -m parsers" + TAIL, {}),
        ("[ -f /opt/rebench-v2/x.py ]" + TAIL, {}),
        ("cd /app\npytest /tests/test_x.py" + TAIL, {"tests/test_x.py": IMPORTS}),
    ],
)
def test_a_grader_that_needs_a_clone_and_writes_0_without_it_is_an_error(rules, test, files):
    found = rules(script(test), dockerfile=PARSER, files=files, offline=True)
    assert found["clone-at-build"] == "error"
    found = rules(script(test), dockerfile=PARSER, files=files)
    assert "clone-at-build" not in found


def test_a_clone_that_the_grader_does_not_need_is_a_warning(rules):
    assert rules(dockerfile=PARSER, offline=True)["clone-at-build"] == "warning"
    loud = "set -e\npython3 /tests/parser.py\necho 1 >/logs/verifier/reward.txt"
    files = {"tests/parser.py": IMPORTS}
    found = rules(script(loud), dockerfile=PARSER, files=files, offline=True)
    assert found["clone-at-build"] == "warning"


def test_other_fetches_of_the_build_are_warnings_only_offline(rules):
    dockerfile = "FROM debian\nRUN apt-get update && apt-get install -y git\n"
    assert "fetch-without-network" not in rules(dockerfile=dockerfile)
    assert rules(dockerfile=dockerfile, offline=True)["fetch-without-network"] == "warning"
