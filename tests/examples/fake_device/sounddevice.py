"""Stands for the package `sounddevice` in a process without an audio device: what it plays goes to `played.pcm`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


class PortAudioError(Exception):
    """Of the same name in the real package."""


def query_devices(kind: str) -> dict[str, object]:
    return {"name": f"fake {kind}"}


class RawOutputStream:
    """Takes a block per millisecond, much faster than real time, on a thread of its own."""

    latency = 0.0

    def __init__(self, *, blocksize: int, callback: Callable[..., None], **_options: object) -> None:
        self._blocksize, self._callback = blocksize, callback
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with Path("played.pcm").open("ab") as played:
            while self._running.is_set():
                block = bytearray(2 * self._blocksize)
                self._callback(memoryview(block), self._blocksize, None, None)
                played.write(block)
                time.sleep(0.001)

    def start(self) -> None:
        self._running.set()
        self._thread.start()

    def stop(self) -> None:
        self._running.clear()
        if self._thread.is_alive():
            self._thread.join()

    abort = stop

    def close(self) -> None:
        """Nothing is held."""
