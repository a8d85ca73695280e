"""Settings of a cluster survive the way through a configuration file; mistakes are errors that name the setting."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from legato.cli.main import legato
from legato.cluster.manifest import IMPORT_PATH, serve_config
from legato.cluster.settings import ModelSettings, ReplicaSettings
from legato.config.engine import EngineConfig
from legato.config.environment import API_KEY_VARIABLE
from legato.config.server import ServerConfig
from legato.errors import ConfigError, InputError

CHANGED = ReplicaSettings(
    models=(ModelSettings(), ModelSettings("a/b", id="large", quant="int8", revision="v1")),
    engine=EngineConfig(max_num_seqs=4, max_queue=7),
    server=ServerConfig(
        voices_folder=Path("/shared/voices"),
        cors_origins=("https://a.example", "https://b.example"),
        voice_aliases={"nova": ("heart", "michael")},
        drain_s=5.0,
    ),
    threads=3,
    gpus=0.5,
)


@pytest.mark.parametrize("settings", [ReplicaSettings(), CHANGED])
def test_settings_survive_json(settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert ReplicaSettings.from_arguments(json.loads(json.dumps(settings.to_arguments()))) == settings


@pytest.mark.parametrize("name", [each.name for each in fields(EngineConfig)])
def test_every_engine_setting_survives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    value = getattr(EngineConfig(), name)
    other = (not value) if isinstance(value, bool) else value + 1
    settings = ReplicaSettings(engine=replace(EngineConfig(), **{name: other}))
    again = ReplicaSettings.from_arguments(json.loads(json.dumps(settings.to_arguments())))
    assert getattr(again.engine, name) == other


def test_api_key_is_in_no_file_and_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ReplicaSettings(server=ServerConfig(api_key="secret-key"))
    text = serve_config(settings, replicas=2, max_replicas=None, host="127.0.0.1", port=8000)
    assert "secret-key" not in text + json.dumps(settings.to_arguments())
    monkeypatch.setenv(API_KEY_VARIABLE, "other-key")
    assert ReplicaSettings.from_arguments({}).server.api_key == "other-key"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model": []}, "model"),
        ({"engine": {"slots": 3}}, "engine.slots"),
        ({"engine": {"max_num_seqs": 0}}, "max_num_seqs"),
        ({"engine": []}, "engine must be an object"),
        ({"server": {"port": 1}}, "port has no effect"),
        ({"models": [{"name": "x"}]}, "models.name"),
        ({"models": []}, "at least one model"),
        ({"models": [{}, {}]}, "same id"),
        ({"threads": 0}, "threads"),
    ],
)
def test_mistakes_name_the_setting(arguments: dict[str, object], named: str) -> None:
    with pytest.raises((ConfigError, InputError), match=named):
        ReplicaSettings.from_arguments(arguments)


def test_command_writes_a_valid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    path = tmp_path / "legato.yaml"
    command = f"cluster config --replicas 3 --max-replicas 9 --max-num-seqs 4 --threads 2 --no-voices -o {path}"
    legato.main(command.split(), standalone_mode=False)
    config = yaml.safe_load(path.read_text())
    (application,) = config["applications"]
    assert application["import_path"] == IMPORT_PATH
    arguments = application["args"]
    assert (arguments.pop("replicas"), arguments.pop("max_replicas")) == (3, 9)
    settings = ReplicaSettings.from_arguments(arguments)
    assert (settings.threads, settings.engine.max_num_seqs) == (2, 4)
    assert config["http_options"] == {"host": "127.0.0.1", "port": 8000}


@pytest.mark.parametrize(
    ("options", "message"),
    [("--wyoming 10200", "no Wyoming port"), ("--log-format json", "--log-format"), ("--replicas 0", "--replicas")],
)
def test_options_without_effect_are_refused(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        legato.main(["cluster", "config", *options.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
