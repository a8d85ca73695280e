"""Download a reference recording from a URL sent by a client, if the server's settings allow it.

Protects against server-side request forgery (SSRF): only http and https, every address of the host must be public, the
connection uses the checked address (no second DNS lookup), redirects are not followed, and size and time are limited.
The settings may limit the hosts to some domains. Blocking; call it from a thread.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from legato.errors import ReferenceAudioError

log = logging.getLogger("legato.server")

TIMEOUT_S = 10.0
"""Timeout of each socket operation."""
MAX_DOWNLOAD_S = 30.0
"""Time limit for the whole download after the name lookup: TLS handshake, header and body."""
_BLOCK_BYTES = 64 * 1024
_FIELD = "clone"

_IPV4_REFUSED = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba Cloud's metadata at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform services, a public address
        "169.254.0.0/16",  # link-local; metadata of most clouds at 169.254.169.254
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle Cloud's metadata at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_IPV6_GLOBAL = ipaddress.IPv6Network("2000::/3")
"""Global unicast. Everything else is refused: among others ::1, IPv4-mapped and IPv4-compatible addresses, NAT64
(64:ff9b::/96, 64:ff9b:1::/48), unique local (fc00::/7), link-local (fe80::/10), site-local (fec0::/10), multicast."""
_IPV6_REFUSED = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, with Teredo, which embeds IPv4 addresses
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which embeds IPv4 addresses
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# The tables follow IANA's special-purpose address registries. `ipaddress.is_global` is not used: its answer for several
# of these networks depends on the Python version.

Resolve = Callable[[str, int], list[str]]


def fetch_recording(
    url: str, *, limit_bytes: int, domains: tuple[str, ...] = (), resolve: Resolve | None = None
) -> bytes:
    """Download at most `limit_bytes` from `url`. Raises `ReferenceAudioError` for any failure.

    `domains`: if not empty, the host must be one of them or a subdomain. `resolve`: host and port to addresses; for
    tests.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ReferenceAudioError("the ref_audio URL is malformed", field=_FIELD) from error
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise ReferenceAudioError(
            "the ref_audio URL must be http or https, with a host and without credentials", field=_FIELD
        )
    if domains and not in_domains(host, domains):
        raise ReferenceAudioError(
            f"this server does not download recordings from {host[:80]!r}: allowed are {', '.join(domains)}",
            field=_FIELD,
        )
    try:
        address = public_address((resolve or resolve_host)(host, port))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _get(_Connection(host, port, address, tls=parts.scheme == "https"), path, limit_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:
        log.info("ref_audio cannot be downloaded from %s: %s", ascii(host[:80]), ascii(str(error)[:200]))
        raise ReferenceAudioError(f"ref_audio cannot be downloaded from {host[:80]!r}", field=_FIELD) from error


def in_domains(host: str, domains: tuple[str, ...]) -> bool:
    """Whether `host` is one of `domains` or a subdomain of one."""
    name = host.lower().removesuffix(".")
    return any(name == domain.lower() or name.endswith(f".{domain.lower()}") for domain in domains)


def resolve_host(host: str, port: int) -> list[str]:
    """All IP addresses of a host."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def public_address(addresses: list[str]) -> str:
    """The first address, provided that all are public: a host with even one private address is refused."""
    for text in addresses:
        if not is_public(text):
            raise ReferenceAudioError("the ref_audio URL does not point to the public internet", field=_FIELD)
    if not addresses:
        raise ReferenceAudioError("the host of the ref_audio URL has no address", field=_FIELD)
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is on the public internet. An address with a zone (`fe80::1%eth0`) never is."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _IPV4_REFUSED)
    return not ip.scope_id and ip in _IPV6_GLOBAL and not any(ip in network for network in _IPV6_REFUSED)


class _Connection(http.client.HTTPConnection):
    """Connects to an address that was already checked, with the original host name for TLS and the Host header."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._address = address
        self._tls = tls
        self._plain: socket.socket | None = None
        self.aborted = False

    def connect(self) -> None:
        """Open the socket, with TLS for https."""
        plain = socket.create_connection((self._address, self.port), timeout=TIMEOUT_S)
        # A duplicate: TLS takes over the descriptor of the original.
        self._plain = plain.dup()
        context = ssl.create_default_context() if self._tls else None
        self.sock = context.wrap_socket(plain, server_hostname=self.host) if context else plain
        if self.aborted:
            raise TimeoutError("the time limit was reached while connecting")

    def abort(self) -> None:
        """Shut the connection down from another thread: a blocked read or handshake returns at once."""
        self.aborted = True
        if self._plain is not None:
            with contextlib.suppress(OSError):  # the peer has closed it already
                self._plain.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close all sockets. `close` is not enough: http.client calls it before the body of a response is read."""
        self.close()
        if self._plain is not None:
            self._plain.close()


def _get(connection: _Connection, path: str, limit_bytes: int) -> bytes:
    """The body of a response with status 200. The download is aborted after `MAX_DOWNLOAD_S`."""
    timer = threading.Timer(MAX_DOWNLOAD_S, connection.abort)
    timer.daemon = True
    with contextlib.ExitStack() as stack:
        stack.callback(timer.cancel)
        stack.callback(connection.release)
        timer.start()
        connection.request("GET", path, headers={"Accept": "audio/*", "User-Agent": "legato"})
        response = stack.enter_context(connection.getresponse())  # it keeps the socket open until it is closed, too
        if response.status != 200:
            raise ReferenceAudioError(
                f"downloading ref_audio returned status {response.status} instead of 200 (redirects are not followed)",
                field=_FIELD,
            )
        blocks, size = [], 0
        while block := response.read1(_BLOCK_BYTES):
            blocks.append(block)
            size += len(block)
            if size > limit_bytes:
                raise ReferenceAudioError(
                    f"the recording is larger than the limit of {limit_bytes / 2**20:.0f} MiB", field=_FIELD
                )
        if connection.aborted:  # the end of a body without a length looks like a regular one
            raise TimeoutError(f"not finished after {MAX_DOWNLOAD_S:g} s")
        return b"".join(blocks)
