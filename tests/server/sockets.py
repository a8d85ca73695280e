"""What the tests of sockets share: one client run to its end, utterances that end soon, a WebSocket by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import TypeVar

from tests.server.running import Running

T = TypeVar("T")
FRAME = 1920
OPTIONS: dict[str, object] = {"voice": "ryan", "seed": 3, "max_new_tokens": 6}


def go(work: Coroutine[None, None, T]) -> T:
    """Run one client; what hangs fails."""
    return asyncio.run(asyncio.wait_for(work, 120))


def ws(server: Running) -> str:
    """The server's address for WebSockets."""
    return server.url.replace("http", "ws")


def handshake(server: Running, path: str) -> socket.socket:
    """A WebSocket without a client library behind it: nobody answers its pings."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    lines = [f"GET {path} HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    raw.sendall("\r\n".join([*lines, "", ""]).encode())
    assert b"101" in raw.recv(2000)
    return raw


def frame(text: str) -> bytes:
    """A masked text frame (RFC 6455, 5.2); the mask is zero."""
    data = text.encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data
