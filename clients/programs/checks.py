"""Reports the checks of one client as JSON lines on standard output. Used by every program in this folder.

A program gets the address of the server and the port of Wyoming as arguments. It runs without Legato.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version

URL = sys.argv[1] if len(sys.argv) > 1 else ""
WYOMING_PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 0
TEXT = "Hello from a client. It speaks two sentences."
MIN_S = 1.0
"""Speech of `TEXT` is longer than this, at every tempo of the embedded voice."""


def describe(package: str) -> None:
    """Report the version of the client's package."""
    print(json.dumps({"package": package, "version": version(package)}), flush=True)


def check(what: str, work: Callable[[], object]) -> None:
    """Run one check; an exception is its failure."""
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"check": what, "error": f"{type(error).__name__}: {error}"[:300]}), flush=True)
        return
    print(json.dumps({"check": what, "error": None}), flush=True)


def expect_pcm(data: bytes, rate_hz: int = 24_000) -> None:
    """Fail unless `data` is audible speech: s16le, mono, longer than `MIN_S`."""
    seconds = len(data) / 2 / rate_hz
    if seconds < MIN_S:
        raise AssertionError(f"{seconds:.2f} s of audio, expected more than {MIN_S} s")
    loudest = max(abs(int.from_bytes(data[at : at + 2], "little", signed=True)) for at in range(0, len(data) - 1, 20))
    if loudest < 1000:
        raise AssertionError(f"the audio is silent: its peak is {loudest}")
