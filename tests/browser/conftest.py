"""A browser for all tests of the page, the servers that it visits, and a page that must stay clean.

Where Chromium is missing the tests are skipped, and the end of the report says so in a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from legato.api import load
from legato.config.server import ServerConfig
from legato.server import pages
from legato.server.pages import read_assets
from tests.browser.chromium import TAP_WORKLET, WAIT_MS, Watched, find_chromium, start
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, cloning, running

MISSING = "Chromium is not installed, so the page was not tested (Debian: apt-get install chromium)"

Visit = Callable[..., Watched]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what was left out."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any(MISSING in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(MISSING, yellow=True, bold=True)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser; every page gets a profile of its own in it."""
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
    """The servers of these tests have one file more, which the page's policy lets in and its browser can find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "read_assets", lambda folder: read_assets(folder) | read_assets(TAP_WORKLET.parent))
        yield


@pytest.fixture(scope="package")
def reader(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """Two voices of its own, word times, and no cloning: as the embedded voice, with random weights."""
    with (
        load(tiny_checkpoint("tiny-embedded"), slots=3, positions=512) as tts,
        running(tts, ServerConfig(model_id="tiny-embedded")) as server,
    ):
        yield server


@pytest.fixture(scope="package")
def cloner(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Clones, and keeps voices in a folder of its own."""
    with cloning(tiny_checkpoint("tiny-base"), tmp_path_factory.mktemp("kept") / "voices") as server:
        yield server


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(server)` opens its page. At the end nothing may have been reported or asked of another machine."""
    seen: list[Watched] = []

    def open_page(server: Running, *, width: int = 1000, language: str = "en-GB", dark: bool = False) -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, locale=language, color_scheme="dark" if dark else "light"
        )
        watched = Watched(context.new_page(), server.url)
        seen.append(watched)
        watched.open()
        return watched

    yield open_page
    for watched in seen:
        watched.page.context.close()
        assert not watched.messages
        own = (watched.url, watched.url.replace("http", "ws"))
        assert watched.addresses
        assert not [address for address in watched.addresses if not address.startswith(own)]
