"""Reverse proxies: whose headers count, the page's own origin behind one, path prefixes, and HEAD requests."""

from __future__ import annotations

import httpx
import pytest
from starlette.datastructures import Headers

from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.proxies import Forwarded, forwarded, parse_proxies
from tests.server.running import Running, running
from tests.server.test_auth import post

PROXIES = parse_proxies(["10.0.0.0/8", "::1"])


def said(peer: str, **headers: str) -> Forwarded:
    return forwarded(Headers({name.replace("_", "-"): value for name, value in headers.items()}), peer, PROXIES)


def test_headers_count_only_from_trusted_proxies() -> None:
    headers = {"x_forwarded_for": "8.8.8.8", "x_forwarded_host": "speech.example", "x_request_id": "abcdefgh"}
    for peer in ("11.0.0.1", "127.0.0.1", "", "unix", "::2"):
        assert said(peer, **headers) == Forwarded()
    for peer in ("10.1.2.3", "::1"):
        assert said(peer, **headers) == Forwarded("8.8.8.8", "speech.example", None, "abcdefgh")


def test_client_is_the_last_address_that_is_not_a_proxy() -> None:
    for value, client in (
        ("6.6.6.6, 8.8.8.8", "8.8.8.8"),
        ("8.8.8.8, 10.0.0.9", "8.8.8.8"),
        ("6.6.6.6, 2001:db8::1, 10.0.0.9, 10.0.0.8", "2001:db8::1"),
        ("10.0.0.9", None),
        ("nonsense", None),
        ("6.6.6.6, nonsense", None),
        ("", None),
    ):
        assert said("10.0.0.1", x_forwarded_for=value).client == client, value


def test_malformed_values_do_not_count() -> None:
    for request_id in ("short", "a" * 65, "has space", "line\\nbreak", "é" * 10, "../../etc/x", "<script>"):
        assert said("::1", x_request_id=request_id).request_id is None
    assert said("::1", x_forwarded_proto="HTTPS").scheme == "https"
    assert said("::1", x_forwarded_proto="gopher").scheme is None
    with pytest.raises(InputError, match="proxy"):
        parse_proxies(["proxy.example"])


def test_page_behind_a_proxy_may_call_its_own_server() -> None:
    """The test's peer is 127.0.0.1, as the proxy of nginx's default configuration, which replaces `Host`."""
    own = {"origin": "https://speech.example"}
    trusted = ServerConfig(trusted_proxies=("127.0.0.1",), allowed_hosts=("speech.example",))
    untrusted = ServerConfig(allowed_hosts=("other.example",))
    host = {"x_forwarded_host": "speech.example"}
    assert post(trusted, headers={**own, **host}).status_code == 200
    assert post(untrusted, headers={**own, **host}).status_code == 403
    rebound = {"origin": "https://evil.example", "x_forwarded_host": "evil.example"}
    assert post(trusted, headers=rebound).status_code == 403
    assert post(trusted, headers={"x_request_id": "from-proxy"}).headers["x-request-id"] == "from-proxy"
    assert post(untrusted, headers={"x_request_id": "from-proxy"}).headers["x-request-id"].startswith("req_")


def test_path_prefix_and_head(speaker: Running) -> None:
    config = ServerConfig(model_id="tiny", warm_up=False, root_path="/speech", api_key="a-secret")
    with running(speaker.tts, config) as server, httpx.Client(base_url=server.url, timeout=60) as web:
        key = {"authorization": "Bearer a-secret"}
        for prefix in ("", "/speech"):
            for path in ("/health", "/ready", "/", "/web/main.js"):
                assert web.get(prefix + path).status_code == 200, prefix + path
                head = web.head(prefix + path)
                assert (head.status_code, head.content) == (200, b""), prefix + path
            assert web.get(f"{prefix}/v1/models").status_code == 401
            assert web.get(f"{prefix}/v1/models", headers=key).status_code == 200
            body = {"input": "Some words.", "voice": "ryan", "max_new_tokens": 1, "pad": "x" * 100_000}
            assert web.post(f"{prefix}/v1/audio/speech", json=body, headers=key).status_code == 200
        for path in ("/speechx/health", "/speech/speech/health"):
            assert web.get(path, headers=key).status_code == 404
        assert web.get("/speech/openapi.json", headers=key).json()["servers"] == [{"url": "/speech"}]
        assert not [line for line in web.get("/").text.splitlines() if 'src="/' in line or 'href="/' in line]
