"""Rules about failures, exit codes and rewards in scripts."""

import pytest

TAIL = """
if [ $? -eq 0 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
"""
PUBLIC = '[environment]\nnetwork_mode = "public"\n'
PYTEST = "FROM python:3.12-slim\nWORKDIR /app\nRUN pip install pytest\n"


def script(text: str) -> str:
    return f"#!/bin/bash\n{text}\n"


@pytest.fixture
def broken(rules):
    def run(text, **parts):
        return rules(script(text), toml=PUBLIC, dockerfile=PYTEST, **parts)

    return run


@pytest.mark.parametrize(
    "text",
    [
        "curl -LsSf https://example.org/i.sh | sh",
        "wget -qO- https://example.org/i.sh | sudo bash -s -- -y",
        "set -e\ncurl https://example.org/i.sh | tee /tmp/i.sh | bash",
        "set -o pipefail\nset +o pipefail\ncurl https://example.org/i.sh | sh",
    ],
)
def test_a_pipe_to_a_shell_without_pipefail_is_reported(broken, text):
    assert broken(text)["pipe-to-shell-without-pipefail"] == "warning"


@pytest.mark.parametrize(
    "text",
    [
        "set -euo pipefail\ncurl https://example.org/i.sh | sh",
        "set -o pipefail\ncurl https://example.org/i.sh | sh",
        "echo 'curl https://example.org/i.sh | sh'",
        "# curl https://example.org/i.sh | sh",
        "cat <<'END' >/tmp/x\ncurl https://example.org/i.sh | sh\nEND",
        "curl https://example.org/x.json | jq .",
        "curl -o i.sh https://example.org/i.sh && sh i.sh",
    ],
)
def test_a_checked_pipe_to_a_shell_is_not_reported(broken, text):
    assert "pipe-to-shell-without-pipefail" not in broken(text)


def test_pipefail_of_a_dockerfile_counts(rules):
    run = "RUN curl https://example.org/i.sh | sh\n"
    assert "pipe-to-shell-without-pipefail" in rules(dockerfile=f"FROM debian\n{run}")
    shell = 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\n'
    assert "pipe-to-shell-without-pipefail" not in rules(dockerfile=f"FROM debian\n{shell}{run}")


def test_source_of_a_fetched_file_is_reported(broken):
    uv = "curl -LsSf https://astral.sh/uv/install.sh | sh\n"
    assert "source-of-fetched-file" in broken(f"{uv}source $HOME/.local/bin/env")
    assert "source-of-fetched-file" in broken(f"{uv}. ~/.local/bin/env")
    downloaded = "curl -o /tmp/env.sh https://example.org/env.sh\nsource /tmp/env.sh"
    assert "source-of-fetched-file" in broken(downloaded)
    assert "source-of-fetched-file" not in broken(f"{uv}source $HOME/.local/bin/env || exit 1")
    assert "source-of-fetched-file" not in broken(f"{uv}source /app/.venv/bin/activate")
    assert "source-of-fetched-file" not in broken(f"set -e\n{uv}source $HOME/.local/bin/env")
    assert "source-of-fetched-file" not in broken("source $HOME/.local/bin/env")


@pytest.mark.parametrize(
    "text",
    [
        "pytest /tests | tee /logs/verifier/out.txt" + TAIL,
        "pytest /tests\necho done" + TAIL,
        "pytest /tests || true\necho 1 >/logs/verifier/reward.txt",
        "pytest /tests; pytest /tests/more" + TAIL,
        "python3 -m pytest /tests\necho 1 >/logs/verifier/reward.txt",
        "uv run pytest /tests 2>&1 | tail -50" + TAIL,
        "npm test\ncd /" + TAIL,
    ],
)
def test_an_ignored_exit_code_is_an_error(broken, text):
    assert broken(text)["exit-code-thrown-away"] == "error"


@pytest.mark.parametrize(
    "text",
    [
        "pytest /tests" + TAIL,
        "set -o pipefail\npytest /tests | tee /logs/verifier/out.txt" + TAIL,
        "pytest /tests | tee out.txt\nif [ ${PIPESTATUS[0]} -eq 0 ]; then echo 1 "
        ">/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi",
        "pytest /tests; status=$?\necho done\n[ $status -eq 0 ]" + TAIL,
        "pytest /tests >out.txt || true\nif grep -q ' passed' out.txt; then echo 1 "
        ">/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi",
        "pytest /tests/a && pytest /tests/b" + TAIL,
        "pytest /tests || exit 1\necho 1 >/logs/verifier/reward.txt",
        "set -e\npytest /tests\necho 1 >/logs/verifier/reward.txt",
        "pytest /tests | tee out.txt\npython3 /tests/score.py out.txt >/logs/verifier/reward.txt",
        "passed=1\npytest /tests/a || passed=0\npytest /tests/b || passed=0\n"
        "echo $passed >/logs/verifier/reward.txt",
        "score=$(pytest /tests | grep -c PASSED)\necho $score >/logs/verifier/reward.txt",
    ],
)
def test_a_used_exit_code_is_not_reported(broken, text):
    files = {"tests/score.py": "print(1)\n", "tests/a/x": "", "tests/b/x": "", "tests/more/x": ""}
    assert "exit-code-thrown-away" not in broken(text, files=files)


@pytest.mark.parametrize(
    "text",
    [
        "set -e\npytest /tests\necho 1 >/logs/verifier/reward.txt",
        "set -euo pipefail\ndiff /app/a /app/b\necho 1 >/logs/verifier/reward.txt",
        "set -e\n[ -f /app/a ]\necho 1 >/logs/verifier/reward.txt",
        "set -o errexit\npython3 -m unittest\nif [ $? -eq 0 ]; then echo 1 "
        ">/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi",
    ],
)
def test_a_script_without_a_reward_for_failing_work_is_an_error(broken, text):
    assert broken(text)["reward-only-at-end-under-set-e"] == "error"


@pytest.mark.parametrize(
    "text",
    [
        "set -e\nif pytest /tests; then echo 1 >/logs/verifier/reward.txt; else "
        "echo 0 >/logs/verifier/reward.txt; fi",
        "set -e\nset +e\npytest /tests" + TAIL,
        "set -e\npytest /tests && r=1 || r=0\necho $r >/logs/verifier/reward.txt",
        "pytest /tests" + TAIL,
        "set -e\ntrap '[ -f /logs/verifier/reward.txt ] || echo 0 >/logs/verifier/reward.txt' "
        "EXIT\npytest /tests\necho 1 >/logs/verifier/reward.txt",
        "set -e\ncd /app\nmkdir -p /logs/verifier\nif diff a b; then r=1; else r=0; fi\n"
        "echo $r >/logs/verifier/reward.txt",
    ],
)
def test_a_guarded_check_under_set_e_is_not_reported(broken, text):
    assert "reward-only-at-end-under-set-e" not in broken(text)


@pytest.mark.parametrize(
    "text",
    [
        "echo 0 >/logs/verifier/reward.txt\npytest /tests && echo 1 >/logs/verifier/reward.txt",
        "mkdir -p /logs/verifier\necho '{\"reward\": 0.0}' >/logs/verifier/reward.json\npytest",
        "trap 'echo 0 >/logs/verifier/reward.txt' EXIT\npytest /tests",
        "pytest\nif [ ! -f /logs/verifier/reward.txt ]; then echo 0 >/logs/verifier/reward.txt; fi",
        "R=/logs/verifier/reward.txt\npytest\n[ -s $R ] || echo 0.0 >$R",
        "pytest\n[[ ! -e /logs/verifier/reward.txt ]] && echo 0 >/logs/verifier/reward.txt",
    ],
)
def test_a_reward_that_is_pre_set_to_0_is_reported(broken, text):
    assert broken(text)["reward-pre-set-to-zero"] == "warning"


@pytest.mark.parametrize(
    "text",
    [
        "pytest /tests" + TAIL,
        "reward=0\npytest /tests && reward=1\necho $reward >/logs/verifier/reward.txt",
        "if [ ! -f /app/a ]; then echo 0 >/logs/verifier/reward.txt; exit 0; fi\npytest" + TAIL,
        "rm -f /logs/verifier/reward.txt\npytest" + TAIL,
        "echo 'echo 0 >/logs/verifier/reward.txt'\npytest" + TAIL,
        "pytest\nif [ ! -f /logs/verifier/reward.txt ]; then echo broken; exit 1; fi",
        "if [ ! -f /app/a ]; then echo 0 >/logs/verifier/reward.txt; fi",
        "[ -f /app/a ] || echo 0 >/logs/verifier/reward.txt",
    ],
)
def test_a_reward_after_the_tests_is_not_reported(broken, text):
    assert "reward-pre-set-to-zero" not in broken(text)


def test_crlf_and_a_missing_shebang_are_reported(rules, make_task):
    crlf = (
        b"#!/bin/bash\r\nif grep -qx a /app/a; then\r\n echo 1 >/logs/verifier/reward.txt\r\nfi\r\n"
    )
    found = rules(crlf)
    assert found["crlf-line-endings"] == "error"
    assert "tests-do-not-parse" not in found
    assert "crlf-line-endings" not in rules("#!/bin/bash\nprintf 'a\\r\\n'\n")
    assert rules("echo 1 >/logs/verifier/reward.txt\n")["no-shebang"] == "warning"
    assert "no-shebang" not in rules()


def test_a_sleep_beyond_the_timeout_is_reported(rules):
    toml = "[verifier]\ntimeout_sec = 30\n"
    test = "#!/bin/bash\n{}\ngrep -q x /app/a && echo 1 >/logs/verifier/reward.txt\n"
    assert "grader-sleeps-past-timeout" in rules(test.format("sleep 1m"), toml=toml)
    assert "grader-sleeps-past-timeout" not in rules(test.format("sleep 5"), toml=toml)
    waits = "until [ -f /tmp/ready ]; do sleep 60; done"
    assert "grader-sleeps-past-timeout" not in rules(test.format(waits), toml=toml)


def test_a_set_up_that_always_fails_is_reported(rules):
    toml = '[[steps]]\nname = "one"\n'
    files = {"steps/one/instruction.md": "x", "steps/one/workdir/setup.sh": "#!/bin/bash\nexit 3\n"}
    assert "set-up-always-fails" in rules(toml=toml, files=files)
    files["steps/one/workdir/setup.sh"] = "#!/bin/bash\nif [ ! -d /app ]; then exit 3; fi\nexit 0\n"
    assert "set-up-always-fails" not in rules(toml=toml, files=files)


def test_the_common_pytest_script_has_only_warnings_with_a_network(rules):
    usual = """
# Install curl
apt-get update
apt-get install -y curl

# Install uv
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh

source $HOME/.local/bin/env

# Check if we're in a valid working directory
if [ "$PWD" = "/" ]; then
    echo "Error: No working directory set. Please set a WORKDIR in your Dockerfile."
    exit 1
fi

uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
"""
    files = {"tests/test_outputs.py": "import numpy\n\n\ndef test_it():\n    pass\n"}
    found = rules(script(usual + TAIL), toml=PUBLIC, files=files)
    assert found == {
        "pipe-to-shell-without-pipefail": "warning",
        "source-of-fetched-file": "warning",
    }
    assert rules(script(usual + TAIL), files=files)["fetch-then-zero"] == "error"


def test_recursive_functions_terminate(rules):
    text = "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(40))
    found = rules(script(f"{text}g() {{ g; g; }}\nf0\ng\necho 1 >/logs/verifier/reward.txt"))
    assert "not-checked" not in found
