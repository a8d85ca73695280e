"""Headless Chromium, driven by Playwright.

`ObservedPage` wraps one page and records its console messages, requests and WebSocket frames.
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
"""No background network traffic; a fake microphone that beeps, with permission granted."""
TAP = Path(__file__).parent / "tap.js"
TAP_WORKLET = Path(__file__).parent / "tap-worklet.js"
WAIT_MS = 60_000
"""Generous, because the machine may be busy."""


def find_chromium() -> str | None:
    """Path of an installed browser."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def start(playwright: Playwright, program: str) -> Browser:
    """Start a browser with a temporary profile."""
    return playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))


@dataclass(slots=True)
class Socket:
    """The frames of one WebSocket in both directions."""

    url: str
    sent: list[str] = field(default_factory=list)
    received: list[str | bytes] = field(default_factory=list)

    def watch(self, socket: WebSocket) -> None:
        """Record every frame."""
        socket.on("framesent", lambda frame: self.sent.append(frame if isinstance(frame, str) else frame.decode()))
        socket.on("framereceived", lambda frame: self.received.append(frame))


@dataclass(slots=True)
class ObservedPage:
    """A page and its recorded activity."""

    page: Page
    url: str
    messages: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    sockets: list[Socket] = field(default_factory=list)

    def open(self) -> None:
        """Attach the recorders and load the page."""
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
