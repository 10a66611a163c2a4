"""Rules about the values and files of rewards."""

import pytest


def script(text: str) -> str:
    return f"#!/bin/bash\ngrep -q x /app/a && found=1\n{text}\n"


INVALID = [
    "echo nan >/logs/verifier/reward.txt",
    "echo 1e400 >/logs/verifier/reward.txt",
    "echo passed >/logs/verifier/reward.txt",
    "echo 7.5 >/logs/verifier/reward.txt",
    ": >/logs/verifier/reward.txt",
    "touch x; echo -n >/logs/verifier/reward.txt",
    "echo 1.0 >/logs/verifier/reward.json",
    "echo '{}' >/logs/verifier/reward.json",
    "echo '{\"reward\": true}' >/logs/verifier/reward.json",
    'echo \'{"reward": "1"}\' >/logs/verifier/reward.json',
    'echo \'{"reward": {"a": 1}}\' >/logs/verifier/reward.json',
    "cat >/logs/verifier/reward.json <<END\n{reward: 1}\nEND",
    "echo 1 >/logs/verifier/reward.txt; echo '{\"reward\": 0.5}' >/logs/verifier/reward.json",
    "if [ -f /app/a ]; then echo 1 >/logs/verifier/reward.txt; else echo no "
    ">/logs/verifier/reward.txt; fi",
]
VALID = [
    "echo 1 >/logs/verifier/reward.txt",
    "echo 0.25 | tee /logs/verifier/reward.txt",
    'echo "$score" >/logs/verifier/reward.txt',
    "echo $((passed / 3)) >/logs/verifier/reward.txt",
    "python3 -c 'print(1)' >/logs/verifier/reward.txt",
    'echo \'{"reward": 1, "speed": 0.5}\' >/logs/verifier/reward.json',
    'echo "{\\"reward\\": $score}" >/logs/verifier/reward.json',
    ": >/logs/verifier/reward.txt\nif [ -f /app/a ]; then echo 1 >/logs/verifier/reward.txt; else "
    "echo 0 >/logs/verifier/reward.txt; fi",
    "echo 1 >/logs/verifier/reward.txt; echo '{\"reward\": 1.0}' >/logs/verifier/reward.json",
    "echo nan >/tmp/other.txt; echo 1 >/logs/verifier/reward.txt",
    'cat >/logs/verifier/reward.json <<END\n{"reward": $score}\nEND',
]


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_reward_is_an_error(rules, text):
    assert rules(script(text))["invalid-reward"] == "error"


@pytest.mark.parametrize("text", VALID)
def test_a_valid_reward_is_not_reported(rules, text):
    assert (
        not {"invalid-reward", "negative-reward", "no-reward-written"} & rules(script(text)).keys()
    )


def test_a_declared_range_is_respected(rules):
    toml = "[metadata]\nreward_range = [-1, 10]\n"
    for value in ("7.5", "-1"):
        text = script(f"echo {value} >/logs/verifier/reward.txt")
        assert {"invalid-reward", "negative-reward"} & rules(text).keys()
        assert not {"invalid-reward", "negative-reward"} & rules(text, toml=toml).keys()


def test_a_negative_sentinel_is_an_error(rules):
    branch = "if ! [ -f /app/a ]; then echo -1 >/logs/verifier/reward.txt; exit 0; fi\n"
    branch += "echo 1 >/logs/verifier/reward.txt"
    assert rules(script(branch))["negative-reward"] == "error"
    assert "negative-reward" not in rules(script("echo -1; echo 0 >/logs/verifier/reward.txt"))


@pytest.mark.parametrize(
    "text",
    [
        "echo '{\"reward\": 1}' >/logs/verifier/rewards.json",
        "echo 1 >/logs/verifier/reward.text",
        "echo 1 | tee /logs/verifier/Reward.txt",
    ],
)
def test_a_misspelt_reward_file_is_an_error(rules, text):
    found = rules(script(text))
    assert found["misspelt-reward-file"] == "error"
    assert "no-reward-written" not in found


def test_other_files_next_to_the_reward_are_not_reported(rules):
    text = "echo 1 >/logs/verifier/reward.txt; echo '{}' >/logs/verifier/rewards.json"
    assert "misspelt-reward-file" not in rules(script(text))
    text = "pytest --ctrf /logs/verifier/ctrf.json >/logs/verifier/output.txt; echo $? "
    assert "misspelt-reward-file" not in rules(script(text))


def test_a_python_grader_writes_rewards_too(rules):
    test = "#!/bin/bash\npython3 /tests/grade.py\n"
    grader = 'from pathlib import Path\n\nPath("/logs/verifier/{}").write_text("1")\n'
    found = rules(test, files={"tests/grade.py": grader.format("reward.txt")})
    assert not {"no-reward-written", "misspelt-reward-file"} & found.keys()
    found = rules(test, files={"tests/grade.py": grader.format("rewards.txt")})
    assert found["misspelt-reward-file"] == "error"


def test_a_missing_reward_is_reported(rules):
    assert rules(script("echo done"))["no-reward-written"] == "error"
    # The called program may write the reward.
    assert rules(script("/opt/grader/run"))["no-reward-written"] == "warning"
    assert "no-reward-written" not in rules(script("/opt/grader/run --to /logs/verifier"))
