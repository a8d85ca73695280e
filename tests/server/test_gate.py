"""The door: keys, origins, sizes, ids. Tested without a model: an application that only says that it was reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from legato.config.server import ServerConfig, key_from_environment
from legato.errors import InputError
from legato.server.errors import ApiError, error_response
from legato.server.gate import Gate

KEY = "s3cret"


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body and says how long it was."""
    size, more = 0, True
    try:
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
    except ApiError as error:
        await error_response(error)(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(config: ServerConfig, path: str = "/v1/models", *, body: bytes = b"", **headers: str) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=Gate(inside, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://here:8000") as client:
            return await client.post(
                path, content=pieces(body), headers={k.replace("_", "-"): v for k, v in headers.items()}
            )

    return asyncio.run(go())


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """Without a length, so that only counting helps."""
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


LOCKED = ServerConfig(api_key=KEY)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer  {KEY} ", 200),
        ("", 401),
        (KEY, 401),
        ("Bearer ", 401),
        (f"Bearer {KEY}x", 401),
    ],
)
def test_the_key(authorization: str, status: int) -> None:
    answer = ask(LOCKED, body=b"", authorization=authorization) if authorization else ask(LOCKED)
    assert answer.status_code == status
    assert answer.headers["x-request-id"].startswith("req_")
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.text


def test_health_needs_no_key_and_metrics_do() -> None:
    assert [ask(LOCKED, path).status_code for path in ("/health", "/ready", "/", "/metrics")] == [200, 200, 200, 401]


def test_a_websocket_may_bring_its_key_as_a_subprotocol_and_is_closed_without() -> None:
    def connect(protocol: str) -> list[Message]:
        sent: list[Message] = []

        async def accept(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send({"type": "websocket.accept", "headers": []})

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"sec-websocket-protocol", protocol.encode())] if protocol else []
        scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "headers": headers}
        asyncio.run(Gate(accept, LOCKED)(scope, receive, send))
        return sent

    assert connect(f"realtime, openai-insecure-api-key.{KEY}")[0]["type"] == "websocket.accept"
    assert [message["type"] for message in connect("realtime")] == ["websocket.close"]


def test_pages_of_other_sites_may_not_call() -> None:
    config = ServerConfig(cors_origins=("https://friend.example",))
    assert ask(config, origin="http://here:8000").status_code == 200
    assert ask(config, origin="https://friend.example").status_code == 200
    for origin in ("https://evil.example", "null", "http://here:8001"):
        answer = ask(config, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


def test_bodies_are_counted_and_not_believed() -> None:
    config = ServerConfig(body_bytes=1000)
    assert ask(config, body=b"x" * 1000).text == "1000"
    assert ask(config, body=b"x" * 1001).status_code == 413
    assert ask(config, content_length="2000", body=b"").status_code == 413


def test_a_request_is_logged_under_its_id_and_its_path_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "legato.server")
    answer = ask(ServerConfig(), "/v1/%0aforged")
    (record,) = caplog.records
    assert answer.headers["x-request-id"] in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "POST /v1/\\nforged -> 200 in" in record.getMessage()
    ask(LOCKED)
    assert "-> 401 (invalid_api_key) in" in caplog.records[-1].getMessage()


def test_settings_refuse_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="port"):
        ServerConfig(port=70_000)
    with pytest.raises(InputError, match="ahead_frames"):
        ServerConfig(ahead_frames=0)
    with pytest.raises(InputError, match="stall_s"):
        ServerConfig(stall_s=0)
    assert KEY not in repr(LOCKED)
    monkeypatch.setenv("LEGATO_API_KEY", f" {KEY} ")
    assert key_from_environment() == KEY
