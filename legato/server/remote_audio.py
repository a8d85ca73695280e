"""Download a reference recording from a URL sent by a client, if the server's settings allow it.

Protects against server-side request forgery (SSRF): only http and https, every address of the host must be public, the
connection uses the checked address (no second DNS lookup), redirects are not followed, and size and time are limited.
Blocking; call it from a thread.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from legato.errors import ReferenceAudioError

TIMEOUT_S = 10.0
"""Timeout of each socket operation."""
MAX_DOWNLOAD_S = 30.0
"""Time limit for the whole body."""
_BLOCK_BYTES = 64 * 1024
_FIELD = "clone"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""The last 32 bits of these addresses are an IPv4 address behind a NAT64 gateway (RFC 6052)."""

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]


def fetch_recording(url: str, *, limit_bytes: int, resolve: Resolve | None = None) -> bytes:
    """Download at most `limit_bytes` from `url`. Raises `ReferenceAudioError` for any failure.

    `resolve`: host and port to addresses; for tests.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ReferenceAudioError(f"the ref_audio URL is malformed: {error}", field=_FIELD) from error
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise ReferenceAudioError(
            "the ref_audio URL must be http or https, with a host and without credentials", field=_FIELD
        )
    try:
        address = public_address((resolve or resolve_host)(host, port))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _get(_Connection(host, port, address, tls=parts.scheme == "https"), path, limit_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReferenceAudioError(f"ref_audio cannot be downloaded from {host}: {error}", field=_FIELD) from error


def resolve_host(host: str, port: int) -> list[str]:
    """All IP addresses of a host."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def public_address(addresses: list[str]) -> str:
    """The first address, provided that all are public: a host with even one private address is refused."""
    for text in addresses:
        ip = ipaddress.ip_address(text.partition("%")[0])
        if any(not address.is_global or address.is_multicast for address in _effective_addresses(ip)):
            raise ReferenceAudioError("the ref_audio URL does not point to the public internet", field=_FIELD)
    if not addresses:
        raise ReferenceAudioError("the host of the ref_audio URL has no address", field=_FIELD)
    return addresses[0]


def _effective_addresses(ip: IPAddress) -> list[IPAddress]:
    """Every address that a packet to `ip` may reach: `ip` itself and IPv4 addresses embedded in it by tunnels."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    if ip.ipv4_mapped:
        return [ip.ipv4_mapped]
    embedded = [ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        embedded.append(ipaddress.IPv4Address(int(ip) % 2**32))
    return [ip, *(address for address in embedded if address)]


class _Connection(http.client.HTTPConnection):
    """Connects to an address that was already checked, with the original host name for TLS and the Host header."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._address = address
        self._tls = tls

    def connect(self) -> None:
        """Open the socket, with TLS for https."""
        plain = socket.create_connection((self._address, self.port), timeout=TIMEOUT_S)
        context = ssl.create_default_context() if self._tls else None
        self.sock = context.wrap_socket(plain, server_hostname=self.host) if context else plain


def _get(connection: _Connection, path: str, limit_bytes: int) -> bytes:
    try:
        connection.request("GET", path, headers={"Accept": "audio/*", "User-Agent": "legato"})
        response = connection.getresponse()
        if response.status != 200:
            raise ReferenceAudioError(
                f"downloading ref_audio returned status {response.status} instead of 200 (redirects are not followed)",
                field=_FIELD,
            )
        blocks, size, deadline_s = [], 0, time.monotonic() + MAX_DOWNLOAD_S
        while block := response.read(_BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > limit_bytes:
                raise ReferenceAudioError(
                    f"the recording is larger than the limit of {limit_bytes / 2**20:.0f} MiB", field=_FIELD
                )
            if time.monotonic() > deadline_s:
                raise ReferenceAudioError(f"downloading ref_audio took longer than {MAX_DOWNLOAD_S:g} s", field=_FIELD)
        return b"".join(blocks)
    finally:
        connection.close()
