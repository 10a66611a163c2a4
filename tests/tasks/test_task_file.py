"""Values of task.toml: valid values are read, invalid values are rejected at their key."""

import tomllib

import pytest
from pydantic import ValidationError

from plimsoll.core.permissions import NetworkMode
from plimsoll.tasks.task_file import TaskConfig


def read(text: str) -> TaskConfig:
    return TaskConfig.model_validate(tomllib.loads(text))


def rejected_keys(text: str) -> list[tuple[object, ...]]:
    with pytest.raises(ValidationError) as caught:
        read(text)
    found: list[tuple[object, ...]] = []
    for error in caught.value.errors():
        found.append((*error["loc"], *error.get("ctx", {}).get("key", ())))
    return found


def test_an_empty_file_has_the_defaults_of_the_format():
    config = read("")
    assert config.schema_version == "1.4"
    assert config.agent.timeout_sec is None
    assert config.verifier.timeout_sec == 600
    assert config.environment.build_timeout_sec == 600
    assert config.environment.network is None
    assert config.multi_step_reward_strategy == "mean"
    assert config.reward_range == (0.0, 1.0)
    assert config.system_calls == ()


def test_system_calls_are_named():
    assert read('metadata.system_calls = ["perf", "bpf"]').system_calls == ("bpf", "perf")


def test_all_keys_of_the_format_are_defined():
    config = read("""
        schema_version = "1.4"
        source = "set"
        artifacts = ["/a", { source = "/b", destination = "b", exclude = ["*.o"], service = "db" }]
        multi_step_reward_strategy = "final"
        [task]
        name = "org/name"
        version = "1"
        description = "d"
        authors = [{ name = "A", email = "a@b.c" }]
        keywords = ["k"]
        [metadata]
        anything = { goes = [1, "two"] }
        [agent]
        timeout_sec = 10
        user = "agent"
        network_mode = "no-network"
        [verifier]
        timeout_sec = 1.5
        env = { A = "${A}" }
        user = 1000
        network_mode = "allowlist"
        allowed_hosts = ["index.example.org", "*.example.org", "10.0.0.1", "10.0.0.0/8", "::1"]
        environment_mode = "separate"
        collect = [{ command = "c", service = "db", timeout_sec = 5, user = "root" }]
        [verifier.environment]
        docker_image = "python:3"
        [environment]
        build_timeout_sec = 60
        docker_image = "python:3"
        os = "linux"
        cpus = 2
        memory_mb = 512
        storage_mb = 1024
        gpus = 1
        gpu_types = ["H100"]
        env = { B = "b" }
        skills_dir = "/skills"
        workdir = "/app"
        network_mode = "public"
        mcp_servers = [{ name = "m", transport = "stdio", command = "x", args = ["y"] }]
        [environment.healthcheck]
        command = "true"
        interval_sec = 1
        timeout_sec = 2
        start_period_sec = 0
        start_interval_sec = 1
        retries = 2
        [solution]
        env = { C = "c" }
        [[steps]]
        name = "one"
        min_reward = 0.5
        artifacts = ["/c"]
        healthcheck = { command = "true" }
        agent = { timeout_sec = 5 }
        verifier = { timeout_sec = 5 }
    """)
    assert config.verifier.user == "1000"
    assert [artifact.source for artifact in config.artifacts] == ["/a", "/b"]
    assert config.artifacts[1].service == "db"
    assert config.environment.healthcheck is not None
    assert config.environment.healthcheck.retries == 2
    assert not config.model_extra


def test_older_keys_set_the_newer_ones():
    config = read("""
        version = "1.0"
        [environment]
        allow_internet = false
        memory = "2G"
        storage = "512M"
    """)
    assert config.schema_version == "1.0"
    assert config.environment.network_mode is NetworkMode.NONE
    assert config.environment.memory_mb == 2048
    assert config.environment.storage_mb == 512
    assert not config.model_extra
    assert not config.environment.model_extra


def test_allow_internet_true_is_public():
    assert read("environment.allow_internet = true").environment.network_mode == "public"


def test_an_older_key_may_repeat_the_newer_one_but_not_contradict_it():
    assert read('environment = { memory = "1G", memory_mb = 1024 }').environment.memory_mb == 1024
    assert rejected_keys('environment = { memory = "1G", memory_mb = 1 }') == [
        ("environment", "memory")
    ]
    assert rejected_keys('environment = { allow_internet = false, network_mode = "public" }') == [
        ("environment", "allow_internet")
    ]


def test_version_with_schema_version_is_an_unknown_key():
    config = read('version = "7"\nschema_version = "1.4"')
    assert config.schema_version == "1.4"
    assert config.model_extra == {"version": "7"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('verifier.timeout_sec = "600"', ("verifier", "timeout_sec")),
        ("verifier.timeout_sec = 0", ("verifier", "timeout_sec")),
        ("agent.timeout_sec = -1", ("agent", "timeout_sec")),
        ("agent.timeout_sec = true", ("agent", "timeout_sec")),
        ("agent.timeout_sec = inf", ("agent", "timeout_sec")),
        ("agent.user = 1.5", ("agent", "user")),
        ("environment.cpus = 0", ("environment", "cpus")),
        ("environment.memory_mb = 1.5", ("environment", "memory_mb")),
        ("environment.gpus = -1", ("environment", "gpus")),
        ('environment.memory = "lots"', ("environment", "memory")),
        ("environment.memory = 2048", ("environment", "memory")),
        ('environment.allow_internet = "no"', ("environment", "allow_internet")),
        ('environment.os = "plan9"', ("environment", "os")),
        ("environment.env.PORT = 80", ("environment", "env", "PORT")),
        ('environment.env."A=B" = "c"', ("environment", "env", "A=B")),
        ('environment.network_mode = "open"', ("environment", "network_mode")),
        ('agent.network_mode = "allowlist"', ("agent", "network_mode")),
        ('agent.allowed_hosts = ["a.b"]', ("agent", "allowed_hosts")),
        ("environment.healthcheck.retries = 1", ("environment", "healthcheck", "command")),
        ('verifier = { environment_mode = "shared", environment = {} }',
         ("verifier", "environment_mode")),
        ('verifier.environment_mode = "own"', ("verifier", "environment_mode")),
        ("verifier = 3", ("verifier",)),
        ('multi_step_reward_strategy = "max"', ("multi_step_reward_strategy",)),
        ('schema_version = "2.0"', ("schema_version",)),
        ("task.version = '1'", ("task", "name")),
        ("artifacts = [3]", ("artifacts", 0)),
        ('steps = [{ name = "a" }, { name = "a" }]', ("steps", 1, "name")),
        ('steps = [{ name = "../a" }]', ("steps", 0, "name")),
        ('steps = [{ name = ".." }]', ("steps", 0, "name")),
        ('steps = [{ name = "a", min_reward = "x" }]', ("steps", 0, "min_reward")),
        ('steps = [{ name = "a", min_reward = { r = true } }]', ("steps", 0, "min_reward")),
        ("metadata.reward_range = [1, 0]", ("metadata", "reward_range")),
        ('metadata.reward_range = "0-1"', ("metadata", "reward_range")),
        ("metadata.reward_range = [0, 1, 2]", ("metadata", "reward_range")),
        ("metadata.reward_range = [false, 1]", ("metadata", "reward_range")),
        ('metadata.system_calls = "bpf"', ("metadata", "system_calls")),
        ('metadata.system_calls = ["bpf", "mount"]', ("metadata", "system_calls")),
        ("metadata.system_calls = [3]", ("metadata", "system_calls")),
    ],
)  # fmt: skip
def test_an_invalid_value_is_rejected_at_its_key(text: str, key: tuple[object, ...]):
    assert rejected_keys(text) == [key]


@pytest.mark.parametrize("host", ["https://a.b", "a b", "", "*", "a/b", "*.*.x"])
def test_an_invalid_host_is_rejected(host: str):
    text = f'agent = {{ network_mode = "allowlist", allowed_hosts = ["{host}"] }}'
    assert rejected_keys(text) == [("agent", "allowed_hosts", 0)]


def test_a_task_may_declare_its_reward_range():
    assert read("metadata.reward_range = [-1, 2.5]").reward_range == (-1.0, 2.5)


def test_min_reward_is_a_number_or_a_number_for_each_reward():
    config = read("""
        steps = [{ name = "a", min_reward = 1 }, { name = "b", min_reward = { x = 0.5, y = 1 } }]
    """)
    assert [step.min_reward for step in config.steps] == [1, {"x": 0.5, "y": 1}]
