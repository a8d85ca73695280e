"""Client, host, scheme and request id of a request that came through reverse proxies.

Only the headers of trusted proxies count: any client can send them. Pure functions.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from legato.errors import InputError

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Values from the headers of a trusted proxy; None if a header is missing or malformed."""

    client: str | None = None
    host: str | None = None
    scheme: str | None = None
    request_id: str | None = None


def parse_proxies(addresses: Sequence[str]) -> tuple[Network, ...]:
    """Addresses or networks (`10.0.0.0/8`) of trusted proxies. `InputError` for anything else."""
    try:
        return tuple(ipaddress.ip_network(address) for address in addresses)
    except ValueError as error:
        raise InputError(
            f"a trusted proxy must be an IP address or a network: {error}", field="trusted_proxies"
        ) from error


def forwarded(headers: Headers, peer: str, trusted: Sequence[Network]) -> Forwarded:
    """The values of the headers `X-Forwarded-For`, `-Host`, `-Proto` and `X-Request-Id` if `peer` is trusted.

    Proxies append to `X-Forwarded-For`, and its beginning may be forged: the client is the last address that is not a
    trusted proxy.
    """
    if not _is_trusted(peer, trusted):
        return Forwarded()
    addresses = [part.strip() for value in headers.getlist("x-forwarded-for") for part in value.split(",")]
    client = next((each for each in reversed(addresses) if each and not _is_trusted(each, trusted)), None)
    scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    request_id = headers.get("x-request-id", "")
    return Forwarded(
        client=client if client is not None and _is_address(client) else None,
        host=headers.get("x-forwarded-host", "").rpartition(",")[2].strip() or None,
        scheme=scheme if scheme in ("http", "https") else None,
        request_id=request_id if _REQUEST_ID.fullmatch(request_id) else None,
    )


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    return _is_address(address) and any(ipaddress.ip_address(address) in network for network in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
