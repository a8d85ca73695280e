"""Chromium without a window, driven by Playwright: how it is found and started, and a page that is watched.

`Watched` owns one page and everything that was seen of it: console messages, requests, WebSocket frames.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, Playwright, WebSocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
"""Nothing that calls home; a microphone that beeps, and nobody who has to allow it."""
TAP = Path(__file__).parent / "tap.js"
TAP_WORKLET = Path(__file__).parent / "tap-worklet.js"
WAIT_MS = 60_000
"""Generous, because the machine may be busy."""


def find_chromium() -> str | None:
    """The browser's program, if one is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def start(playwright: Playwright, program: str) -> Browser:
    """A browser with a profile of its own, which is gone with it."""
    return playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))


@dataclass(slots=True)
class Socket:
    """What went over one WebSocket: JSON frames of each side, binary frames of the server."""

    url: str
    sent: list[str] = field(default_factory=list)
    received: list[str | bytes] = field(default_factory=list)

    def watch(self, socket: WebSocket) -> None:
        """Keep every frame."""
        socket.on("framesent", lambda frame: self.sent.append(frame if isinstance(frame, str) else frame.decode()))
        socket.on("framereceived", lambda frame: self.received.append(frame))


@dataclass(slots=True)
class Watched:
    """A page and what was seen of it."""

    page: Page
    url: str
    messages: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    sockets: list[Socket] = field(default_factory=list)

    def open(self) -> None:
        """Load the page and wait until it knows its server."""
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda each: self.messages.append(f"{each.type}: {each.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("websocket", lambda socket: self._socket(socket))
        self.page.add_init_script(path=TAP)
        self.page.goto(self.url)

    def _socket(self, socket: WebSocket) -> None:
        self.addresses.append(socket.url)
        self.sockets.append(Socket(socket.url))
        self.sockets[-1].watch(socket)
