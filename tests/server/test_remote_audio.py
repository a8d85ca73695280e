"""Downloading recordings from URLs: no private addresses, no redirects, limited size."""

from __future__ import annotations

import threading
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
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:c0a8:101::1"),
    ],
)
def test_private_addresses_are_rejected(address: str) -> None:
    for addresses in ([address], ["93.184.216.34", address]):
        with pytest.raises(ReferenceAudioError, match="public internet"):
            public_address(addresses)


def test_public_addresses_are_accepted() -> None:
    assert public_address(["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]) == "93.184.216.34"
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


class Site(BaseHTTPRequestHandler):
    """A test site; its response depends on the path."""

    def do_GET(self) -> None:
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
