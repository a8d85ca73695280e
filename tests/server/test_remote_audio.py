"""Downloading recordings from URLs: no private addresses, no redirects, limited size."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from legato.errors import ReferenceAudioError
from legato.server import remote_audio as remote
from legato.server.remote_audio import fetch_recording, public_address


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "224.0.0.1", "240.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::1", "64:ff9b:1:ffff::7f00:1"),
        *("2002:7f00:1::", "2002:c0a8:101::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1"),
        *("192.0.0.1", "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.0.192", "192.0.0.255", "192.88.99.1"),
        *("168.63.129.16", "100.100.100.200", "100.127.255.255", "169.254.170.2", "198.18.0.1", "198.19.255.255"),
        *("192.0.2.1", "198.51.100.1", "203.0.113.9", "255.255.255.255", "172.31.255.255", "10.255.255.255"),
        *("::127.0.0.1", "::8.8.8.8", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1", "fec0::1", "feff::1", "febf::1"),
        *("fd00:ec2::254", "fc00::1", "ff02::1", "ff0e::1", "100::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1"),
        *("2606:2800:220:1::1%eth0", "nonsense", ""),
    ],
)
def test_private_addresses_are_rejected(address: str) -> None:
    for addresses in ([address], ["93.184.216.34", address]):
        with pytest.raises(ReferenceAudioError, match="public internet"):
            public_address(addresses)


def test_public_addresses_are_accepted() -> None:
    assert public_address(["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]) == "93.184.216.34"
    for address in (
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "168.63.129.15",
        "192.0.1.1",
    ):
        assert public_address([address]) == address
    for address in ("2001:4860:4860::8888", "2a00:1450:4001::1", "2600::1"):
        assert public_address([address]) == address
    with pytest.raises(ReferenceAudioError, match="no address"):
        public_address([])


@pytest.mark.parametrize(
    "url",
    ["ftp://a/b", "http:///x", "http://user:pw@example.com/", "http://[::1", "http://example.com:99999/", "https://"],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ReferenceAudioError, match="URL"):
        fetch_recording(url, limit_bytes=100, resolve=lambda *_: ["93.184.216.34"])


def test_host_names_of_loopback_are_rejected() -> None:
    for host in ("localhost", "127.1", "0x7f000001", "2130706433"):
        with pytest.raises(ReferenceAudioError):
            fetch_recording(f"http://{host}:1/a.wav", limit_bytes=100)


def test_other_domains_are_rejected_before_a_name_lookup() -> None:
    def resolve(_host: str, _port: int) -> list[str]:
        raise AssertionError("looked up")

    for host in ("evil.example", "xcdn.example", "cdn.example.evil.example", "example", "127.0.0.1"):
        with pytest.raises(ReferenceAudioError, match=r"allowed are cdn\.example"):
            fetch_recording(f"http://{host}/a", limit_bytes=100, domains=("cdn.example",), resolve=resolve)
    for host in ("cdn.example", "CDN.example.", "a.cdn.example"):
        with pytest.raises(AssertionError, match="looked up"):
            fetch_recording(f"http://{host}/a", limit_bytes=100, domains=("cdn.example",), resolve=resolve)


def test_connection_uses_the_checked_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers the second lookup with a private address gets no second lookup."""
    lookups: list[str] = []
    connected: list[object] = []

    def resolve(host: str, _port: int) -> list[str]:
        lookups.append(host)
        return ["93.184.216.34"] if len(lookups) == 1 else ["127.0.0.1"]

    def create_connection(address: object, **_options: object) -> socket.socket:
        connected.append(address)
        raise OSError("[Errno 111] internal detail")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with pytest.raises(ReferenceAudioError) as refused:
        fetch_recording("http://rebind.example/a", limit_bytes=100, resolve=resolve)
    assert (lookups, connected) == (["rebind.example"], [("93.184.216.34", 80)])
    assert "internal detail" not in str(refused.value)


class Site(BaseHTTPRequestHandler):
    """A test site; its response depends on the path."""

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            head = b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if self.path == "/slow-body" else b"X: ")
            try:
                self.wfile.write(head)
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            except OSError:
                return
            return
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1/secret")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * (10_000 if self.path == "/large" else 10))

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextmanager
def site() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_download_size_is_limited_and_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address check is disabled, because the test site is on a loopback address."""
    monkeypatch.setattr(remote, "public_address", lambda addresses: addresses[0])
    with site() as port:

        def fetch(path: str) -> bytes:
            url = f"http://example.com:{port}{path}"
            return fetch_recording(url, limit_bytes=100, resolve=lambda *_: ["127.0.0.1"])

        assert fetch("/small") == b"x" * 10
        with pytest.raises(ReferenceAudioError, match="larger"):
            fetch("/large")
        with pytest.raises(ReferenceAudioError, match="302"):
            fetch("/redirect")


@pytest.mark.parametrize("path", ["/slow-header", "/slow-body"])
def test_slow_server_is_cut_in_time(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(remote, "public_address", lambda addresses: addresses[0])
    monkeypatch.setattr(remote, "MAX_DOWNLOAD_S", 0.5)
    started_s = time.monotonic()
    with site() as port, pytest.raises(ReferenceAudioError, match="cannot be downloaded"):
        fetch_recording(f"http://a.example:{port}{path}", limit_bytes=10**6, resolve=lambda *_: ["127.0.0.1"])
    assert time.monotonic() - started_s < 4
