"""Files in `deploy/`: valid YAML, settings that replicas accept, options that exist, and names that match the code."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from legato.cli.main import legato
from legato.cluster.manifest import IMPORT_PATH
from legato.cluster.proxy import CALLBACK, CALLBACK_VARIABLE
from legato.cluster.settings import ReplicaSettings
from legato.config.environment import API_KEY_VARIABLE

DEPLOY = Path(__file__).parents[1] / "deploy"


def parse(words: list[str]) -> dict[str, Any]:
    """Parameters of a command line; `click.UsageError` if it is invalid."""
    command: click.Command = legato
    context = click.Context(legato)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    return command.make_context("legato", words).params


def ray_service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "kuberay" / "rayservice.yaml").read_text())
    return found


def test_ray_service_has_settings_that_replicas_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    service = ray_service()
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    assert application["import_path"] == IMPORT_PATH
    arguments = dict(application["args"])
    replicas, most = arguments.pop("replicas"), arguments.pop("max_replicas")
    settings = ReplicaSettings.from_arguments(arguments)
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (replicas, most)
    (worker,) = group["template"]["spec"]["containers"]
    assert int(worker["resources"]["limits"]["cpu"]) == settings.threads
    assert worker["volumeMounts"][0]["mountPath"] == str(settings.server.voices_folder)
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] > settings.server.drain_s
    for pod in (service["spec"]["rayClusterConfig"]["headGroupSpec"], group):
        (container,) = pod["template"]["spec"]["containers"]
        names = {each["name"]: each.get("value") for each in container["env"]}
        assert names[CALLBACK_VARIABLE] == CALLBACK
        assert API_KEY_VARIABLE in names


def test_ray_version_is_the_tested_one() -> None:
    constraints = (DEPLOY.parent / "constraints.txt").read_text().splitlines()
    assert f"ray=={ray_service()['spec']['rayClusterConfig']['rayVersion']}" in constraints


def test_compose_file_starts_a_valid_command() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    (service,) = compose["services"].values()
    words = [*service["entrypoint"], *service["command"]]
    assert words.pop(0) == "legato"
    assert parse(words)["replicas"] == 2
    assert set(service["build"]["args"]) == {"EXTRAS"}
    assert "ARG EXTRAS" in (DEPLOY.parent / "Dockerfile").read_text()
    (volume,) = service["volumes"]
    assert volume.partition(":")[0] in compose["volumes"]


def test_systemd_unit_starts_a_valid_command() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "legato.service")
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/legato")
    assert parse(words)["log_format"] == "json"
    assert int(unit["Service"]["TimeoutStopSec"]) > 30


def test_an_unknown_option_is_noticed() -> None:
    """The control of the tests above."""
    with pytest.raises(click.UsageError):
        parse(["serve", "--no-such-option"])
