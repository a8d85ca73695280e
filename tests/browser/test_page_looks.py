"""Accessibility and appearance of the page: languages, keyboard, screen readers, themes, phones, CSP, API key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from legato.api import load
from legato.config.server import ServerConfig
from tests.browser.audio import messages
from tests.browser.chromium import ObservedPage
from tests.browser.conftest import Visit
from tests.browser.test_page_sound import speak, state
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, wait_for

CONTRAST = Path(__file__).parent / "contrast.js"


def open_panels(page: Page) -> None:
    for summary in page.locator("summary").all():
        summary.click()


# --- languages -------------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_strings(visit: Visit, reader: Running) -> None:
    """Same keys and same placeholders; only names may be identical."""
    page = visit(reader).page
    tables = page.evaluate("import('/web/strings.js').then(({ STRINGS }) => STRINGS)")
    assert set(tables) == {"en", "zh"}
    assert set(tables["en"]) == set(tables["zh"])
    for key, english in tables["en"].items():
        placeholders = re.findall(r"{\w+}", english)
        assert sorted(re.findall(r"{\w+}", tables["zh"][key])) == sorted(placeholders), key
    same = {key for key, english in tables["en"].items() if english == tables["zh"][key]}
    assert same <= {"title", "apiDocs"}


def test_page_uses_chinese_if_the_browser_does(visit: Visit, reader: Running) -> None:
    """The language button switches to English, which is kept after a reload."""
    page = visit(reader, language="zh-CN").page
    open_panels(page)
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    shown = page.locator("body").inner_text()
    known = "Legato tiny embedded one two EN Ctrl Enter Shift Esc API Base https localhost s ms".split()
    assert set(re.findall(r"[A-Za-z]+", shown)) <= set(known)
    expect(page.locator("[data-part=text]")).to_have_attribute("aria-label", "要朗读的文字")
    page.locator("#language").click()
    expect(page.locator("[data-part=speak]")).to_have_text("Speak")
    page.reload()
    expect(page.locator("[data-part=speak]")).to_have_text("Speak")
    assert not re.search("[\u4e00-\u9fff]{2}", page.locator("main").inner_text())


# --- keyboard, screen readers, appearance ----------------------------------------------------------------------------


def test_page_works_with_the_keyboard_only(visit: Visit, reader: Running) -> None:
    """Controls are reached in page order with a visible focus, and shortcuts speak, interrupt and stop."""
    observed = visit(reader)
    page = observed.page
    expect(page.locator(".card")).to_be_visible()
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        focused = "() => { const at = document.activeElement; return at.dataset.part ?? at.id ?? at.localName; }"
        reached.append(page.evaluate(focused) or page.evaluate("document.activeElement.localName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached
    assert reached[:7] == ["language", "theme", "text", "select", "speak", "interrupt", "stop"]
    page.locator("[data-part=text]").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("One, two, three, four, five, six, seven, eight, nine, ten. " * 3)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".card")).to_have_attribute("data-state", "speaking")
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator(".log li[data-state=stopped]")).to_have_count(1)
    expect(page.locator(".card")).to_have_attribute("data-state", "speaking")
    page.keyboard.press("Escape")
    state(page, "stopped")

    def cancelled_twice() -> bool:
        page.wait_for_timeout(20)  # the cancel is sent after the audio thread has reported the playback position
        return len(messages(observed.sockets[0], "input.cancel")) == 2

    wait_for(cancelled_twice)


def test_every_control_has_an_accessible_name_and_status_is_announced(visit: Visit, reader: Running) -> None:
    page = visit(reader).page
    open_panels(page)
    speak(page, "Hello.")
    state(page, "finished")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = ("button", "combobox", "textbox", "slider", "spinbutton", "link", "image", "list", "DisclosureTriangle")
    seen = [node for node in nodes if node.get("role", {}).get("value") in named and not node["ignored"]]
    assert len(seen) > 12
    assert not [node["role"]["value"] for node in seen if not node.get("name", {}).get("value")]
    assert page.locator("[data-part=state][role=status]").inner_text().startswith("Finished")
    assert re.search(r"[1-9]\d* packets", page.locator("[data-part=wave]").get_attribute("aria-label") or "")


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_sufficient_contrast(visit: Visit, reader: Running, dark: bool) -> None:
    """At least 4.5:1 (WCAG AA), in both themes. Negative control: a colour with less."""
    page = visit(reader, dark=dark).page
    open_panels(page)
    speak(page, "Hello.")
    state(page, "finished")
    script = CONTRAST.read_text(encoding="utf-8")
    result = page.evaluate(script)
    assert result["checked"] > 30
    assert result["faults"] == []
    page.evaluate("document.querySelector('[data-part=state]').style.color = '#8888'")
    assert len(page.evaluate(script)["faults"]) == 1
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")
    page.evaluate("document.querySelector('[data-part=state]').style.color = ''")
    page.wait_for_timeout(300)
    assert page.evaluate(script)["faults"] == []


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_page_fits_a_phone_screen(visit: Visit, reader: Running, language: str) -> None:
    page = visit(reader, width=320, language=language).page
    open_panels(page)
    speak(page, "Hello, a rather long text that has to find its place on a small screen. " * 2)
    page.keyboard.press("Escape")
    state(page, "stopped")
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    overflowing = (
        "[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > 321).length"
    )
    assert page.evaluate(overflowing) == 0


# --- policy and key --------------------------------------------------------------------------------------------------


def test_content_security_policy_blocks_other_hosts_and_inline_scripts(browser: Browser, reader: Running) -> None:
    """Negative control for all tests that observe no foreign request: an attempt is blocked."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(reader.url)
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.inline = true";
          document.body.append(script);
        }"""
    )
    assert page.evaluate("window.inline") is None
    fetch_elsewhere = "fetch('http://127.0.0.2:9/').then(() => 'answered', (error) => error.name)"
    assert page.evaluate(fetch_elsewhere) == "TypeError"
    violation = page.evaluate(
        """() => new Promise((resolve) => {
          addEventListener("securitypolicyviolation", ({ effectiveDirective }) => resolve(effectiveDirective));
          fetch("http://127.0.0.2:9/").catch(() => {});
        })"""
    )
    assert violation == "connect-src"
    context.close()


def test_page_asks_for_the_api_key(browser: Browser, tiny_checkpoint: TinyCheckpoint) -> None:
    """The key is sent as a header over HTTP and as a subprotocol on the WebSocket; a wrong key is rejected."""
    config = ServerConfig(model_id="tiny-embedded", api_key="secret-key", warm_up=False)
    with load(tiny_checkpoint("tiny-embedded"), max_seq_len=512) as tts, running(tts, config) as server:
        context = browser.new_context(locale="en")
        observed = ObservedPage(context.new_page(), server.url)
        observed.open()
        for key in ("wrong", "secret-key"):
            expect(observed.page.locator("#key")).to_be_visible()
            expect(observed.page.locator(".card")).to_have_count(0)
            observed.page.locator("#key-field").fill(key)
            observed.page.locator("#key button").click()
        expect(observed.page.locator("#key")).to_be_hidden()
        speak(observed.page, "Hello.")
        state(observed.page, "finished")
        assert {"401" in message for message in observed.messages} == {True}
        context.close()


def test_lost_connection_is_shown(browser: Browser, tiny_checkpoint: TinyCheckpoint) -> None:
    """The current utterance fails with a message; the next one shows that the server cannot be reached."""
    config = ServerConfig(model_id="tiny-embedded", warm_up=False, drain_s=0.1)
    context = browser.new_context(locale="en")
    with load(tiny_checkpoint("tiny-embedded"), max_seq_len=512) as tts:
        with running(tts, config) as server:
            observed = ObservedPage(context.new_page(), server.url)
            observed.open()
            speak(observed.page, "One, two, three, four, five, six, seven, eight, nine, ten. " * 9)
            expect(observed.page.locator(".card")).to_have_attribute("data-state", "speaking")
        state(observed.page, "failed")
        expect(observed.page.locator("[data-part=error]")).to_have_text("The connection was lost.")
        speak(observed.page, "Is the server there?")
        expect(observed.page.locator("[data-part=error]")).to_contain_text("Cannot reach the server")
    context.close()
