"""Auth middleware: API keys, hosts, origins, CORS, body sizes, request ids, with a stub application without a model."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.config.environment import api_key_from_environment
from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.auth import AuthMiddleware
from legato.server.errors import ApiError, error_response

KEY = "s3cret"
BASE_URL = "http://127.0.0.1:8000"


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


def post(
    config: ServerConfig,
    path: str = "/v1/models",
    *,
    body: bytes = b"",
    method: str = "POST",
    app: ASGIApp = stub_app,
    headers: Mapping[str, str] | None = None,
    **more_headers: str,
) -> httpx.Response:
    """Send a request. Header values are sent in Latin-1, as bytes."""
    all_headers = {**(headers or {}), **more_headers}

    async def send_request() -> httpx.Response:
        transport = httpx.ASGITransport(app=AuthMiddleware(app, config))
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in all_headers.items()]
            return await client.request(method, path, content=blocks(body), headers=raw)

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
        (f"Api-Key {KEY}", 200),
        (f"Api-Key {KEY}x", 401),
        (f"bearer  {KEY} ", 200),
        ("", 401),
        (KEY, 401),
        ("Bearer ", 401),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
        (f"Bearer {KEY[:-1]}x", 401),
        (f"Bearer x{KEY[1:]}", 401),
        (f"Bearer {KEY.upper()}", 401),
        (f"Bearer {'x' * len(KEY)}", 401),
        (f"Basic {KEY}", 401),
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


def connect(config: ServerConfig, headers: list[tuple[bytes, bytes]]) -> list[Message]:
    """The messages that the server sends in response to a WebSocket handshake."""
    sent: list[Message] = []

    async def accept(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "headers": []})

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "headers": headers}
    asyncio.run(AuthMiddleware(accept, config)(scope, receive, send))
    return sent


def test_websocket_key_may_be_a_subprotocol() -> None:
    def first(protocol: str) -> str:
        messages = connect(WITH_KEY, [(b"sec-websocket-protocol", protocol.encode())])
        return str(messages[0]["type"])

    assert first(f"realtime, openai-insecure-api-key.{KEY}") == "websocket.accept"
    for wrong in (KEY[:-1] + "x", KEY.upper(), KEY[:-1], KEY + "x", ""):
        assert first(f"realtime, openai-insecure-api-key.{wrong}") == "websocket.close", wrong
    assert first("realtime") == "websocket.close"


def test_foreign_origins_are_rejected() -> None:
    config = ServerConfig(cors_origins=("https://allowed.example",))
    assert post(config, origin=BASE_URL).status_code == 200
    assert post(config, origin="https://allowed.example").status_code == 200
    near = ["http://127.0.0.1:8001", "http://127.0.0.1:80", "http://127.0.0.1", "http://127.0.0.1:8000.evil.example"]
    near += ["http://127.0.0.1.evil.example:8000", "http://evil.example:8000", "http://x@127.0.0.1:8000"]
    near += ["https://allowed.example.evil.example", "https://sub.allowed.example", "http://allowed.example"]
    for origin in ("https://evil.example", "null", "http://[", "http://[::1", "http://a b", "\xff", "x" * 5000, *near):
        answer = post(config, origin=origin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin"), origin


def test_own_origin_is_recognized_with_and_without_a_default_port() -> None:
    for host, origin in (
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("127.0.0.1", "https://127.0.0.1"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
    ):
        assert post(ServerConfig(), host=host, origin=origin).status_code == 200, (host, origin)
    behind_proxy = ServerConfig(allowed_hosts=("speech.example",))
    assert post(behind_proxy, host="127.0.0.1:8000", origin="https://speech.example").status_code == 200
    assert post(behind_proxy, host="127.0.0.1:8000", origin="https://speech.example.evil").status_code == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3:8000", "[::1]:9", "localhost", "a.localhost:1", "box.local", socket.gethostname()]
)
def test_local_host_names_are_allowed(host: str) -> None:
    assert post(ServerConfig(), host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evillocal"),
        *("local", "notlocalhost", "0x7f.1", "[fe80::1.evil]", "xspeech.example", "speech.example.evil"),
    ],
)
def test_foreign_host_names_are_rejected(host: str) -> None:
    """DNS rebinding: `Host` and `Origin` both have the attacker's name."""
    config = ServerConfig(allowed_hosts=("speech.example",))
    for origin in ({}, {"origin": f"http://{host}"}):
        answer = post(config, host=host, headers=origin)
        assert answer.status_code in (400, 403), (host, origin)
        assert answer.json()["error"]["code"] in ("unknown_host", "foreign_origin", "invalid_host")
    websocket = connect(ServerConfig(), [(b"host", host.encode()), (b"origin", f"http://{host}".encode())])
    assert [message["type"] for message in websocket] == ["websocket.close"]


def test_host_is_not_checked_if_allowed_or_if_a_key_is_required() -> None:
    assert post(ServerConfig(allowed_hosts=("Speech.example",)), host="speech.EXAMPLE:8000").status_code == 200
    assert post(WITH_KEY, host="evil.example").status_code == 401
    assert post(WITH_KEY, host="evil.example", authorization=f"Bearer {KEY}").status_code == 200


@pytest.mark.parametrize("header", ["origin", "host", "authorization", "content_type", "content_length", "cookie"])
@pytest.mark.parametrize("value", ["http://[", "[", "\xff\xfe", "a" * 9000, "\t", ',;="', "9" * 5000, "%", "-1"])
def test_unparsable_headers_are_never_a_server_error(header: str, value: str) -> None:
    for config in (ServerConfig(), WITH_KEY, ServerConfig(cors_origins=("https://a.example",))):
        answer = post(config, headers={header: value})
        assert answer.status_code in (200, 400, 401, 403, 413), (header, value)
        websocket = connect(config, [(header.replace("_", "-").encode(), value.encode("latin-1"))])
        assert websocket[0]["type"] in ("websocket.close", "websocket.accept")


CORS = ServerConfig(api_key=KEY, cors_origins=("https://app.example",))


def test_preflight_is_answered_without_a_key() -> None:
    headers = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    answer = post(CORS, "/v1/audio/speech", method="OPTIONS", origin="https://app.example", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    foreign = post(CORS, "/v1/audio/speech", method="OPTIONS", origin="https://evil.example", headers=headers)
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"", 401),
        ({"authorization": "Bearer wrong"}, b"", 401),
        ({"authorization": f"Bearer {KEY}"}, b"", 200),
        ({"authorization": f"Bearer {KEY}"}, b"x" * 2000, 413),
        ({"authorization": f"Bearer {KEY}", "content_length": "5000"}, b"", 413),
        ({"host": "["}, b"", 400),
    ],
)
def test_all_responses_to_an_allowed_origin_have_cors_headers(
    headers: dict[str, str], body: bytes, status: int
) -> None:
    config = replace(CORS, body_bytes=1000)
    answer = post(config, origin="https://app.example", body=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
    assert {"x-request-id", "x-sample-rate", "x-notes", "server-timing", "retry-after"} <= set(exposed)


def test_unexpected_error_is_one_sentence_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError("secret at 0x7f00 in /opt/legato/x.py")

    answer = post(CORS, app=failing, origin="https://app.example", authorization=f"Bearer {KEY}")
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert answer.headers["x-request-id"] in message
    assert "secret" not in answer.text
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "secret at" in caplog.text


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
