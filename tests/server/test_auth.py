"""Auth middleware: API keys, origins, body sizes, request ids. The wrapped application is a stub without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from legato.config.environment import api_key_from_environment
from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.auth import AuthMiddleware
from legato.server.errors import ApiError, error_response

KEY = "s3cret"


async def stub_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Responds with the length of the request body."""
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


def post(config: ServerConfig, path: str = "/v1/models", *, body: bytes = b"", **headers: str) -> httpx.Response:
    async def send_request() -> httpx.Response:
        transport = httpx.ASGITransport(app=AuthMiddleware(stub_app, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://server:8000") as client:
            return await client.post(
                path, content=blocks(body), headers={k.replace("_", "-"): v for k, v in headers.items()}
            )

    return asyncio.run(send_request())


async def blocks(body: bytes) -> AsyncIterator[bytes]:
    """The body in blocks, so that the request has no Content-Length."""
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


WITH_KEY = ServerConfig(api_key=KEY)


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
def test_api_key_is_checked(authorization: str, status: int) -> None:
    answer = post(WITH_KEY, body=b"", authorization=authorization) if authorization else post(WITH_KEY)
    assert answer.status_code == status
    assert answer.headers["x-request-id"].startswith("req_")
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.text


def test_health_is_public_and_metrics_need_the_key() -> None:
    assert [post(WITH_KEY, path).status_code for path in ("/health", "/ready", "/", "/metrics")] == [200, 200, 200, 401]


def test_websocket_key_may_be_a_subprotocol() -> None:
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
        asyncio.run(AuthMiddleware(accept, WITH_KEY)(scope, receive, send))
        return sent

    assert connect(f"realtime, openai-insecure-api-key.{KEY}")[0]["type"] == "websocket.accept"
    assert [message["type"] for message in connect("realtime")] == ["websocket.close"]


def test_foreign_origins_are_rejected() -> None:
    config = ServerConfig(cors_origins=("https://allowed.example",))
    assert post(config, origin="http://server:8000").status_code == 200
    assert post(config, origin="https://allowed.example").status_code == 200
    for origin in ("https://evil.example", "null", "http://server:8001"):
        answer = post(config, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


def test_body_size_is_counted_regardless_of_content_length() -> None:
    config = ServerConfig(body_bytes=1000)
    assert post(config, body=b"x" * 1000).text == "1000"
    assert post(config, body=b"x" * 1001).status_code == 413
    assert post(config, content_length="2000", body=b"").status_code == 413


def test_access_log_has_the_request_id_and_escapes_the_path(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "legato.server")
    answer = post(ServerConfig(), "/v1/%0aforged")
    (record,) = caplog.records
    assert answer.headers["x-request-id"] in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "POST /v1/\\nforged -> 200 in" in record.getMessage()
    post(WITH_KEY)
    assert "-> 401 (invalid_api_key) in" in caplog.records[-1].getMessage()


def test_invalid_settings_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="port"):
        ServerConfig(port=70_000)
    with pytest.raises(InputError, match="ahead_frames"):
        ServerConfig(ahead_frames=0)
    with pytest.raises(InputError, match="stall_s"):
        ServerConfig(stall_s=0)
    assert KEY not in repr(WITH_KEY)
    monkeypatch.setenv("LEGATO_API_KEY", f" {KEY} ")
    assert api_key_from_environment() == KEY
