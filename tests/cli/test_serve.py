"""`legato serve`: TLS, reloading keys, warnings about open servers, Wyoming on loopback, and the JSON log."""

from __future__ import annotations

import json
import logging
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from legato.cli import serve as serve_module
from legato.cli.json_log import JsonFormatter
from legato.cli.serve import is_loopback, serve
from legato.cli.serve_options import ServeOptions
from legato.config.server import ServerConfig
from legato.errors import InputError
from tests.conftest import TinyCheckpoint
from tests.server.running import wait_for
from tests.server.test_process import serving


def config_of(*arguments: str) -> ServerConfig:
    """The settings of a command line."""
    values = serve.make_context("serve", list(arguments)).params
    return ServeOptions(**{name: values[name] for name in ServeOptions.__dataclass_fields__}).config("tiny")


def test_options_reach_the_settings(tmp_path: Path) -> None:
    config = config_of("--root-path", "/speech/", "--trusted-proxy", "10.0.0.0/8", "--allowed-host", "a.example")
    assert (config.root_path, config.trusted_proxies, config.allowed_hosts) == (
        "/speech",
        ("10.0.0.0/8",),
        ("a.example",),
    )
    domains = config_of("--allowed-media-domain", "cdn.example")
    assert (domains.remote_references, domains.media_domains) == (True, ("cdn.example",))
    for fields in ({"root_path": "speech"}, {"root_path": "/a/"}, {"ssl_keyfile": tmp_path}):
        with pytest.raises(InputError):
            ServerConfig(**fields)


def test_wyoming_listens_on_loopback_unless_told_otherwise() -> None:
    assert config_of("--host", "0.0.0.0", "--wyoming").wyoming_host == "127.0.0.1"
    assert config_of("--wyoming", "--wyoming-host", "0.0.0.0").wyoming_host == "0.0.0.0"


def test_open_servers_are_warned_about(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def warning(*arguments: str) -> str:
        serve_module._warn_if_open(config_of(*arguments))
        return capsys.readouterr().err

    assert "set an API key" in warning("--host", "0.0.0.0")
    assert "set an API key" in warning("--host", "::")
    assert "Wyoming" in warning("--wyoming", "--wyoming-host", "0.0.0.0")
    for safe in ([], ["--host", "127.0.0.2"], ["--host", "::1"], ["--host", "localhost"], ["--wyoming"]):
        assert warning(*safe) == ""
    assert warning("--host", "0.0.0.0", "--api-key", "secret") == ""
    assert warning("--host", "0.0.0.0", "--api-keys", str(tmp_path / "keys")) == ""
    assert not is_loopback("localhost.example")


def test_json_formatter() -> None:
    record = logging.LogRecord("legato.server", logging.INFO, "", 0, 'a "%s"\n', ("é",), None)
    record.fields = {"request_id": "req_1", "key": None, "status": "200"}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    body = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", body.pop("time"))
    assert body == {
        "level": "info",
        "logger": "legato.server",
        "message": 'a "é"\n',
        "request_id": "req_1",
        "status": "200",
    }
    try:
        raise RuntimeError("x")
    except RuntimeError:
        failed = logging.LogRecord("legato", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert "RuntimeError: x" in json.loads(JsonFormatter().format(failed))["traceback"]


def test_https_with_keys_that_sighup_reloads_and_a_json_log(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    certificate, key, keys = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "keys"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    keys.write_text("ann first-key\n")
    keys.chmod(0o600)
    options = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--api-keys", str(keys)]
    model = ["-m", str(tiny_checkpoint("tiny-custom-voice")), "--name", "tiny"]
    with serving(*model, *options, "--log-format", "json") as (process, lines):
        wait_for(lambda: any("listening on https" in line for line in lines), seconds=120)
        (url,) = re.findall(r"https://127\.0\.0\.1:\d+", "".join(lines))
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=url, verify=context, timeout=60) as web:

            def status(name: str) -> int:
                return web.get("/v1/models", headers={"authorization": f"Bearer {name}"}).status_code

            assert (status("first-key"), status("other-key")) == (200, 401)
            keys.write_text("bob other-key\n")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: status("other-key") == 200)
            assert status("first-key") == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    requests = [entry for entry in entries if entry.get("route") == "/v1/models"]
    assert (requests[0]["key"], requests[0]["status"], requests[0]["client"]) == ("ann", "200", "127.0.0.1")
    assert (requests[1]["error"], requests[1]["status"]) == ("invalid_api_key", "401")
    assert requests[-2]["key"] == "bob"
    assert not any("first-key" in line for line in lines)
