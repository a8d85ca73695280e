"""Parse and check the `Host` and `Origin` headers: protection against DNS rebinding and against other web pages.

With DNS rebinding, a web page makes its own domain name resolve to this server's address, so that browsers treat both
as one origin. The name in `Host` is then the attacker's. Functions are pure, except that `own_names` asks the system.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

_AUTHORITY = re.compile(
    r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[^\s:/?#@\[\]\\,\"'<>%]{1,255})(?::(?P<port>\d{1,5}))?", re.ASCII
)
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Authority:
    """A host name in lower case (IPv6 in brackets) and a port; `port` is None if the header has none."""

    name: str
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """Parse `name[:port]`, as in the `Host` header; None if it is malformed."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = None if match["port"] is None else int(match["port"])
    if port is not None and port > 65535:
        return None
    return Authority(match["name"].lower().removesuffix("."), port)


def is_own_origin(origin: str, host: Authority | None, own_hosts: frozenset[str]) -> bool:
    """Whether a page of `origin` was served by this server.

    True if scheme, name and port agree with the `Host` header, or the name is one of `own_hosts` (a reverse proxy may
    replace `Host`). False for a malformed origin.
    """
    match = _ORIGIN.fullmatch(origin)
    page = parse_authority(match["authority"]) if match else None
    if match is None or page is None:
        return False
    if page.name in own_hosts:
        return True
    default_port = _DEFAULT_PORTS[match["scheme"]]
    return host is not None and page.name == host.name and (page.port or default_port) == (host.port or default_port)


def origin_of_fetch(*, referer: str, fetch_site: str) -> str:
    """The origin of the page that caused a GET request without the header `Origin`; "" if no foreign page did.

    Browsers send no `Origin` for `<audio src>`, but `Referer`, `Sec-Fetch-Site`, or both. "null" stands for a foreign
    page that hides its address.
    """
    if fetch_site in ("same-origin", "none"):
        return ""
    page = _ORIGIN.match(referer)
    if page is not None:
        return page[0]
    return "null" if fetch_site or referer else ""


def is_allowed_host(name: str, allowed: frozenset[str]) -> bool:
    """Whether `name` cannot be an attacker's domain: an IP address, a local name, or one of `allowed`."""
    if name in allowed or name == "localhost" or name.endswith((".localhost", ".local")):
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def own_names() -> frozenset[str]:
    """The name of this machine, with and without its domain."""
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0]} - {""})
