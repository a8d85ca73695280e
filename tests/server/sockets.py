"""Helpers of the WebSocket tests: run a client with a timeout, options for short utterances, a raw WebSocket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import TypeVar

from tests.server.running import Running

T = TypeVar("T")
FRAME = 1920
OPTIONS: dict[str, object] = {"voice": "ryan", "seed": 3, "max_new_tokens": 6}


def run_client(work: Coroutine[None, None, T]) -> T:
    """Run a client; fail if it hangs."""
    return asyncio.run(asyncio.wait_for(work, 120))


def ws(server: Running) -> str:
    """WebSocket URL of a server."""
    return server.url.replace("http", "ws")


def handshake(server: Running, path: str) -> socket.socket:
    """A raw WebSocket without a client library, so pings are not answered."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    raw.sendall("\r\n".join([*lines, "", ""]).encode())
    assert b"101" in raw.recv(2000)
    return raw


def frame(text: str) -> bytes:
    """A masked text frame (RFC 6455, 5.2); the mask is zero."""
    data = text.encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data
