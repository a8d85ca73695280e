"""Fixtures of the browser tests: the browser, the servers, and pages that must produce no errors.

Without Chromium the tests are skipped, and the summary says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from legato.api import load
from legato.config.server import ServerConfig
from legato.server.web import pages
from legato.server.web.pages import read_assets
from tests.browser.chromium import TAP_WORKLET, WAIT_MS, ObservedPage, find_chromium, start
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, cloning, running

MISSING = "Chromium is not installed: browser tests skipped (Debian: apt-get install chromium)"

Visit = Callable[..., ObservedPage]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a warning if the browser tests were skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any(MISSING in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(MISSING, yellow=True, bold=True)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests; every page has its own context."""
    program = find_chromium()
    if program is None:
        pytest.skip(MISSING)
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = start(playwright, program)
        yield browser
        browser.close()


@pytest.fixture(scope="package", autouse=True)
def tap() -> Iterator[None]:
    """Serve the tap worklet next to the page's files, because the page's policy only allows its own server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "read_assets", lambda folder: read_assets(folder) | read_assets(TAP_WORKLET.parent))
        yield


@pytest.fixture(scope="package")
def reader(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """Two built-in voices, word timestamps, no cloning: like the embedded voice, with random weights."""
    with (
        load(tiny_checkpoint("tiny-embedded"), max_num_seqs=3, max_seq_len=512) as tts,
        running(tts, ServerConfig(model_id="tiny-embedded")) as server,
    ):
        yield server


@pytest.fixture(scope="package")
def cloner(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that clones and stores uploaded voices in a temporary folder."""
    with cloning(tiny_checkpoint("tiny-base"), tmp_path_factory.mktemp("uploaded") / "voices") as server:
        yield server


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(server)` opens its page. Finally checks that it logged no messages and contacted no other host."""
    opened: list[ObservedPage] = []

    def open_page(server: Running, *, width: int = 1000, language: str = "en-GB", dark: bool = False) -> ObservedPage:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, locale=language, color_scheme="dark" if dark else "light"
        )
        observed = ObservedPage(context.new_page(), server.url)
        opened.append(observed)
        observed.open()
        return observed

    yield open_page
    for observed in opened:
        observed.page.context.close()
        assert not observed.messages
        own = (observed.url, observed.url.replace("http", "ws"))
        assert observed.addresses
        assert not [address for address in observed.addresses if not address.startswith(own)]
