"""Reward files are read exactly or rejected."""

import pytest

from plimsoll.trials.rewards import MAX_FILE_BYTES, NoReward, Reward, read_reward

UNIT = (0.0, 1.0)


def read(reward_range=UNIT, **files: bytes | str):
    named = {name.replace("_", "."): data for name, data in files.items()}
    return read_reward(
        {n: d.encode() if isinstance(d, str) else d for n, d in named.items()}, reward_range
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("0", 0.0),
        ("0.5\n", 0.5),
        ("  1.0 \r\n", 1.0),
        ("+1", 1.0),
        ("1e0", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("5E-1", 0.5),
        ("-0.0", 0.0),
    ],
)
def test_one_number_in_reward_txt_is_the_reward(text, value):
    reward = read(reward_txt=text)
    assert isinstance(reward, Reward)
    assert (reward.value, reward.file) == (value, "reward.txt")
    assert str(reward.value) == str(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "reward.txt is empty"),
        (" \n\n", "reward.txt is empty"),
        ("nan", "not a finite number"),
        ("-inf", "not a finite number"),
        ("Infinity", "not a finite number"),
        ("1e400", "not a finite number"),
        ("1_0", 'holds "1_0", not one number'),
        ("1.0 passed", 'holds "1.0 passed", not one number'),
        ("1\n0\n", 'holds "1 0", not one number'),
        ("true", "not one number"),
        ("0x1", "not one number"),
        ("١", "not one number"),
        ("{}", "not one number"),
        (b"\xff\xfe1\x00", "not UTF-8"),
        ("1" * (MAX_FILE_BYTES + 1), "too long to be a reward"),
    ],
)
def test_other_contents_of_reward_txt_are_no_reward(text, message):
    problem = read(reward_txt=text)
    assert isinstance(problem, NoReward)
    assert message in problem.reason
    assert "\n" not in problem.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "reward.json is empty"),
        ("{}", "empty object"),
        ("1", "a bare number"),
        ("true", "holds true"),
        ('"1"', 'the string "1"'),
        ("null", "null"),
        ("[1]", "a list"),
        ('{"reward": {"a": 1}}', "`reward` in reward.json is an object"),
        ('{"reward": [1]}', "is a list"),
        ('{"reward": "1"}', 'is the string "1"'),
        ('{"reward": true}', "is true, not a number"),
        ('{"reward": null}', "is null"),
        ('{"reward": NaN}', "not a finite number"),
        ('{"reward": -Infinity}', "not a finite number"),
        ('{"reward": 1e400}', "not a finite number"),
        ('{"reward": 1' + "0" * 400 + "}", "not a finite number"),
        ('{"reward": 1' + "0" * 5000 + "}", "cannot be read|JSON that can be read"),
        ('{"reward": 0, "reward": 1}', "names `reward` more than once"),
        ('{"reward": 1, "a": false}', "`a` in reward.json is false"),
        ('{"reward": 1} {"reward": 0}', "not JSON"),
        ("{'reward': 1}", "not JSON"),
        (b'{"reward": 1, "\xff": 1}', "not UTF-8"),
        ("[" * 60_000, "not JSON"),
        (" " * (MAX_FILE_BYTES + 1), "too long to be a reward"),
    ],
)
def test_anything_but_an_object_of_finite_numbers_is_no_reward(text, message):
    problem = read(reward_json=text)
    assert isinstance(problem, NoReward)
    assert any(part in problem.reason for part in message.split("|"))
    assert "\n" not in problem.reason


def test_the_key_reward_is_the_reward_and_the_rest_are_metrics():
    reward = read(reward_json='{"reward": 0.5, "seconds": 812, "loss": -3}')
    assert isinstance(reward, Reward)
    assert reward.value == 0.5
    assert reward.values == {"reward": 0.5, "seconds": 812.0, "loss": -3.0}
    assert reward.notes == ()


def test_an_only_key_is_the_reward():
    reward = read(reward_json='{"accuracy": 1}')
    assert isinstance(reward, Reward)
    assert (reward.value, reward.notes) == (1.0, ())


def test_several_keys_are_averaged_with_a_note():
    reward = read(reward_json='{"style": 0, "tests": 1}')
    assert isinstance(reward, Reward)
    assert reward.value == 0.5
    assert "mean of its 2 numbers (style, tests)" in reward.notes[0].what


def test_a_mean_is_made_of_numbers_in_range():
    problem = read(reward_json='{"a": 2, "b": 0}')
    assert isinstance(problem, NoReward)
    assert "2 for `a`, outside 0 to 1" in problem.reason


@pytest.mark.parametrize("text", ["-1", "1.5"])
def test_a_reward_outside_its_range_is_rejected_with_advice(text):
    problem = read(reward_txt=text)
    assert isinstance(problem, NoReward)
    assert "metadata.reward_range = [" in problem.reason
    assert "task.toml" in problem.reason


def test_a_reward_in_a_declared_range_is_valid():
    reward = read((-1.0, 10.0), reward_txt="-1")
    assert isinstance(reward, Reward)
    assert reward.value == -1.0
    assert isinstance(read((-1.0, 10.0), reward_txt="-1.01"), NoReward)


def test_reward_json_takes_precedence_over_an_equal_reward_txt():
    reward = read(reward_json='{"reward": 1, "n": 3}', reward_txt="1.0\n")
    assert isinstance(reward, Reward)
    assert reward.file == "reward.json"


@pytest.mark.parametrize("text", ["0", "", "x"])
def test_two_files_that_differ_are_no_reward(text):
    problem = read(reward_json='{"reward": 1}', reward_txt=text)
    assert isinstance(problem, NoReward)
    assert "reward.txt" in problem.reason
    assert {note.where for note in problem.evidence} == {
        "verifier/reward.json",
        "verifier/reward.txt",
    }


def test_no_file_is_no_reward():
    problem = read_reward({"ctrf.json": b"{}"}, UNIT)
    assert problem == NoReward("the grader wrote neither reward.json nor reward.txt")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rewards.json", "reward.json"), ("reward.JSON", "reward.json"), ("reward.tx", "reward.txt")],
)
def test_a_misspelt_file_is_reported_and_not_read(name, meant):
    problem = read_reward({name: b"1"}, UNIT)
    assert isinstance(problem, NoReward)
    assert f"{name} (misspelt: {meant} is read)" in problem.reason
    assert problem.evidence[0].where == f"verifier/{name}"
