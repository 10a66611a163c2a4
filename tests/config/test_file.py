"""The config file: every table is optional, and no key is ignored."""

from pathlib import Path

import pytest

from plimsoll.config.file import Config, load_config
from plimsoll.core.errors import UsageError
from plimsoll.sandboxes.local.backend import LocalOptions
from plimsoll.sandboxes.pool.options import PoolOptions
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.plan import make_plan
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.assets.stager import Stager
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.trials.artifacts import Bounds


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "plimsoll.toml"
    file.write_text(text)
    return file


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(write(tmp_path, text))
    return str(caught.value)


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(None) == Config()
    assert Config().local.host_paths is None


def test_the_file_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, '[local]\nhost_paths = ["/usr"]\n')
    assert load_config(None).local.host_paths == ("/usr",)


def test_a_named_file_must_exist(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        load_config(tmp_path / "none.toml")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path):
    (tmp_path / "py312").mkdir()
    text = '[local]\nhome = "kept"\n[local.roots]\n"python:3.12-slim" = "py312"\n'
    local = load_config(write(tmp_path, text)).local
    assert local.roots == {"python:3.12-slim": str(tmp_path / "py312")}
    assert local.home == str(tmp_path / "kept")


def test_an_unknown_key_is_refused_with_its_line(tmp_path: Path):
    said = refusal(tmp_path, "[local]\n\nhost_path = []\n")
    assert said.endswith("plimsoll.toml:3: unknown key local.host_path (did you mean host_paths?)")


def test_an_unknown_table_is_refused_and_the_known_ones_named(tmp_path: Path):
    said = refusal(tmp_path, "[cloud]\n")
    known = (
        "local, docker, pool, assets, breaker, policy, agents, run, workers, storage, training, "
        "evaluation, metrics"
    )
    assert f"plimsoll.toml:1: unknown key cloud (known here: {known})" in said


def test_every_mistake_is_listed(tmp_path: Path):
    said = refusal(tmp_path, '[local]\nhome = 3\nhost_paths = "/usr"\n').splitlines()
    assert [line.split("plimsoll.toml", 1)[1] for line in said] == [
        ":3: local.host_paths: expected a list",
        ":2: local.home: expected text",
    ]


def test_a_missing_root_is_refused(tmp_path: Path):
    said = refusal(tmp_path, '[local.roots]\n"a:1" = "/nowhere/at/all"\n')
    assert 'plimsoll.toml:2: local.roots: "a:1": /nowhere/at/all is not a folder' in said


def test_host_paths_must_be_absolute(tmp_path: Path):
    assert '"usr" is not an absolute path' in refusal(tmp_path, '[local]\nhost_paths = ["usr"]\n')


def test_system_calls_are_allowed_by_name(tmp_path: Path):
    text = '[local]\nallow_system_calls = ["bpf", "io-uring"]\n'
    assert load_config(write(tmp_path, text)).local.allow_system_calls == ("bpf", "io-uring")
    said = refusal(tmp_path, '[local]\nallow_system_calls = ["mount"]\n')
    assert "plimsoll.toml:2: local.allow_system_calls" in said
    assert "user-namespaces" in said


def test_host_and_context_exclude_each_other(tmp_path: Path):
    both = '[docker]\nhost = "unix:///x"\ncontext = "build-7"\n'
    said = refusal(tmp_path, both)
    assert "plimsoll.toml:3: docker.context: docker.host names a daemon, too; keep one" in said


def test_name_servers_must_be_addresses(tmp_path: Path):
    said = refusal(tmp_path, '[docker]\ndns = ["10.0.0.2", "nonsense"]\n')
    assert 'plimsoll.toml:2: docker.dns: "nonsense" is not the address of a name server' in said
    file = write(tmp_path, '[docker]\ndns = ["10.0.0.2", "fd00::1"]\n')
    assert load_config(file).docker.dns == ("10.0.0.2", "fd00::1")


def test_invalid_toml_is_refused_with_its_line(tmp_path: Path):
    said = refusal(tmp_path, "[local\n")
    assert "not valid TOML" in said
    assert "line 1" in said


def test_missing_assets_are_named_before_anything_starts(tmp_path: Path):
    folder = tmp_path / "assets"
    with AssetStore.locked(folder) as store:
        file = tmp_path / "file"
        file.write_text("x")
        given = LocalSources(urls={"https://example.invalid/f": file})
        Stager(store, given, print).stage(make_plan((), (), given.requests()))
    assets = load_assets(folder)
    assert assets is not None
    (folder / assets.assets[0].path).unlink()
    with pytest.raises(UsageError, match=r"files/.*: missing, and assets.toml names it"):
        load_assets(folder)


def test_the_allowed_share_is_between_0_and_1(tmp_path: Path):
    file = write(tmp_path, "[breaker]\nallowed_share = 0.25\n")
    assert load_config(file).breaker.allowed_share == 0.25
    for wrong in ("1.5", "-0.1", '"some"'):
        said = refusal(tmp_path, f"[breaker]\nallowed_share = {wrong}\n")
        assert ":2: breaker.allowed_share: expected a number from 0 to 1" in said


def test_numbers_must_be_within_their_bounds(tmp_path: Path):
    for wrong in ('"30"', "-1", "inf", "true"):
        said = refusal(tmp_path, f"[workers]\ngrace_seconds = {wrong}\n")
        assert ":2: workers.grace_seconds: expected a number, 0 or more" in said
    for text, said in (
        ("[run]\nslack_seconds = nan\n", "run.slack_seconds: expected a number above 0"),
        ("[run]\nseed = 1.5\n", "run.seed: expected a whole number"),
        ('[workers]\nray.resources.CPU = "a"\n', "workers.ray.resources.CPU: expected a number"),
    ):
        assert f":2: {said}" in refusal(tmp_path, text)
    assert load_config(write(tmp_path, "[workers]\ngrace_seconds = 3\n")).workers.grace_seconds == 3


def test_the_pool_takes_one_of_three_modes_and_whole_numbers(tmp_path: Path):
    text = '[pool]\nreuse = "reset"\nuses = 7\nahead = 0\n'
    pool = load_config(write(tmp_path, text)).pool
    assert (pool.reuse, pool.uses, pool.ahead) == ("reset", 7, 0)
    assert (Config().pool.reuse, Config().pool.uses, Config().pool.ahead) == (None, 50, None)
    for line, said in (
        ('reuse = "always"', "pool.reuse: expected none, fresh or reset"),
        ("uses = 0", "pool.uses: expected a whole number, 1 or more"),
        ("ahead = -1", "pool.ahead: expected a whole number, 0 or more"),
        ('uses = "many"', "pool.uses: expected a whole number"),
    ):
        assert f":2: {said}" in refusal(tmp_path, f"[pool]\n{line}\n")


def test_defaults_are_those_of_the_options_that_they_set():
    config = Config()
    assert config.local.upper_mb == LocalOptions().upper_mb
    assert config.pool.uses == PoolOptions(concurrency=1).uses
    assert Bounds.of(config.storage) == Bounds()
