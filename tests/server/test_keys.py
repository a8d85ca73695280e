"""Named API keys from a file: format, comparison, reloading, and their names in the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.auth import AuthMiddleware
from legato.server.keys import ApiKeys
from tests.server.test_auth import BASE_URL, stub_app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# comment\n\nann  first-key\nbob second-key\n")
    path.chmod(0o600)
    return path


def status(keys: ApiKeys, config: ServerConfig, key: str) -> int:
    async def get() -> int:
        transport = httpx.ASGITransport(app=AuthMiddleware(stub_app, config, keys))
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            headers = {"authorization": f"Bearer {key}"}
            return (await client.get("/v1/models", headers=headers)).status_code

    return asyncio.run(get())


def test_each_key_is_accepted_and_its_name_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(api_key="own-key", api_keys_file=file)
    keys = ApiKeys(config)
    caplog.set_level("INFO", "legato.server")
    for key, name in (("first-key", "ann"), ("second-key", "bob"), ("own-key", "default")):
        assert keys.name_of(key) == name
        assert status(keys, config, key) == 200
        assert caplog.records[-1].__dict__["fields"]["key"] == name
        assert key not in caplog.text
    for key in ("first-kex", "xirst-key", "first-key ", "FIRST-KEY", "first-ke", "second-kez", "ann", "#", "", "é"):
        assert keys.name_of(key) is None


def test_keys_are_reloaded_and_kept_if_the_file_is_invalid(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(api_keys_file=file)
    keys = ApiKeys(config)
    file.write_text("ann third-key\n")
    keys.reload()
    assert [status(keys, config, key) for key in ("third-key", "first-key", "second-key")] == [200, 401, 401]
    for text in ("", "ann\n", "# only a comment\n", "ann third-key\nann other-key\n", "é é\n"):
        file.write_text(text)
        keys.reload()
        assert keys.required
        assert keys.name_of("third-key") == "ann"
        assert "were not reloaded" in caplog.text
        caplog.clear()
    file.unlink()
    keys.reload()
    assert keys.name_of("third-key") == "ann"


@pytest.mark.parametrize(
    "text", ["", "x\n", "a b c\n", "a short\n", "a key-one-1\nb key-one-1\n", "default key-one-1\n", "ä k\n"]
)
def test_server_does_not_start_with_an_invalid_file(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match="API keys") as refused:
        ApiKeys(ServerConfig(api_keys_file=file))
    assert "key-one" not in str(refused.value)


def test_missing_file_is_an_error_and_a_readable_one_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        ApiKeys(ServerConfig(api_keys_file=file.with_name("none")))
    file.chmod(0o644)
    ApiKeys(ServerConfig(api_keys_file=file))
    assert "chmod 600" in caplog.text
    assert not ApiKeys(ServerConfig()).required
