"""Fetching a recording from a URL that a client sent, where the server's settings allow it. Owns nothing.

The danger is that a client lets this server reach what it cannot reach itself. So: only http and https, every address
of the host must be public, the connection goes to the very address that was checked (no second look-up), no redirect is
followed, and size and time are bounded. Blocking; called from a thread.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from legato.errors import ReferenceAudioError

TIMEOUT_S = 10.0
"""For each step of the connection."""
LONGEST_S = 30.0
"""For the whole body."""
_BLOCK_BYTES = 64 * 1024
_FIELD = "clone"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Its last 32 bits are an IPv4 address on the other side of a translator (RFC 6052)."""

Resolve = Callable[[str, int], list[str]]


def fetch_recording(url: str, *, limit_bytes: int, resolve: Resolve | None = None) -> bytes:
    """The body behind `url`, at most `limit_bytes`. `ReferenceAudioError` for whatever is wrong with it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ReferenceAudioError(f"the URL of ref_audio is malformed: {error}", field=_FIELD) from error
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise ReferenceAudioError("the URL of ref_audio must be plain http or https without a password", field=_FIELD)
    try:
        address = public_address((resolve or addresses_of)(host, port))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _get(_Connection(host, port, address, tls=parts.scheme == "https"), path, limit_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReferenceAudioError(f"ref_audio cannot be fetched from {host}: {error}", field=_FIELD) from error


def addresses_of(host: str, port: int) -> list[str]:
    """All addresses of a host."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def public_address(addresses: list[str]) -> str:
    """The first address, if all of them are public: a name with one private address among them is refused."""
    for address in addresses:
        ip = ipaddress.ip_address(address.partition("%")[0])
        if any(not each.is_global or each.is_multicast for each in _reached(ip)):
            raise ReferenceAudioError("ref_audio names a machine that is not on the public internet", field=_FIELD)
    if not addresses:
        raise ReferenceAudioError("the machine that ref_audio names has no address", field=_FIELD)
    return addresses[0]


def _reached(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The address that a packet to `ip` may come out at: its own, or the IPv4 address that it carries inside."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    if ip.ipv4_mapped:
        return [ip.ipv4_mapped]
    inside = [ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        inside.append(ipaddress.IPv4Address(int(ip) % 2**32))
    return [ip, *(each for each in inside if each)]


class _Connection(http.client.HTTPConnection):
    """Connects to an address that was checked, under the name that was asked for."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._address = address
        self._tls = tls

    def connect(self) -> None:
        """Open the socket."""
        plain = socket.create_connection((self._address, self.port), timeout=TIMEOUT_S)
        context = ssl.create_default_context() if self._tls else None
        self.sock = context.wrap_socket(plain, server_hostname=self.host) if context else plain


def _get(connection: _Connection, path: str, limit_bytes: int) -> bytes:
    try:
        connection.request("GET", path, headers={"Accept": "audio/*", "User-Agent": "legato"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ReferenceAudioError(f"ref_audio's machine answered {answer.status}", field=_FIELD)
        blocks, size, until_s = [], 0, time.monotonic() + LONGEST_S
        while block := answer.read(_BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > limit_bytes:
                raise ReferenceAudioError(f"the recording is larger than {limit_bytes / 2**20:.0f} MiB", field=_FIELD)
            if time.monotonic() > until_s:
                raise ReferenceAudioError(f"the recording did not come within {LONGEST_S:g} s", field=_FIELD)
        return b"".join(blocks)
    finally:
        connection.close()
