"""What the tests of sockets share: one client run to its end, and utterances that end soon. Owns nothing."""

from __future__ import annotations

import asyncio
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
