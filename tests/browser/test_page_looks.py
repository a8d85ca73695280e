"""The page for everybody: both languages, keyboard alone, screen readers, light and dark, phones, and its policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from legato.api import load
from legato.config.server import ServerConfig
from tests.browser.chromium import Watched
from tests.browser.conftest import Visit
from tests.browser.heard import messages
from tests.browser.test_page_sound import speak, state
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, wait_for

CONTRAST = Path(__file__).parent / "contrast.js"


def open_panels(page: Page) -> None:
    for summary in page.locator("summary").all():
        summary.click()


# --- languages -------------------------------------------------------------------------------------------------------


def test_both_languages_say_the_same_things(visit: Visit, reader: Running) -> None:
    """The same keys with the same places for values, and all that the page asks for."""
    page = visit(reader).page
    tables = page.evaluate("import('/web/strings.js').then(({ STRINGS }) => STRINGS)")
    assert set(tables) == {"en", "zh"}
    assert set(tables["en"]) == set(tables["zh"])
    for key, english in tables["en"].items():
        places = re.findall(r"{\w+}", english)
        assert sorted(re.findall(r"{\w+}", tables["zh"][key])) == sorted(places), key
    same = {key for key, english in tables["en"].items() if english == tables["zh"][key]}
    assert same <= {"title", "moreApi"}


def test_the_page_speaks_chinese_where_the_browser_does(visit: Visit, reader: Running) -> None:
    """And English on request, which it remembers."""
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


# --- keyboard, screen readers, looks ---------------------------------------------------------------------------------


def test_a_keyboard_is_enough(visit: Visit, reader: Running) -> None:
    """Everything can be reached in the order of the page, shows that it has the focus, and speaks and stops."""
    watched = visit(reader)
    page = watched.page
    expect(page.locator(".card")).to_be_visible()
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        told = "() => { const at = document.activeElement; return at.dataset.part ?? at.id ?? at.localName; }"
        reached.append(page.evaluate(told) or page.evaluate("document.activeElement.localName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached
    assert reached[:7] == ["language", "theme", "text", "select", "speak", "over", "stop"]
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

    def told_twice() -> bool:
        page.wait_for_timeout(20)  # the page tells the server what was heard when the audio thread has said it
        return len(messages(watched.sockets[0], "input.cancel")) == 2

    wait_for(told_twice)


def test_everything_has_a_name_and_states_are_told(visit: Visit, reader: Running) -> None:
    page = visit(reader).page
    open_panels(page)
    speak(page, "Hello.")
    state(page, "over")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = ("button", "combobox", "textbox", "slider", "spinbutton", "link", "image", "list", "DisclosureTriangle")
    seen = [node for node in nodes if node.get("role", {}).get("value") in named and not node["ignored"]]
    assert len(seen) > 12
    assert not [node["role"]["value"] for node in seen if not node.get("name", {}).get("value")]
    assert page.locator("[data-part=state][role=status]").inner_text().startswith("Spoken")
    assert re.search(r"[1-9]\d* packets", page.locator("[data-part=wave]").get_attribute("aria-label") or "")


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_what_is_behind_it(visit: Visit, reader: Running, dark: bool) -> None:
    """4.5 to 1, as WCAG asks; the control is a colour that does not."""
    page = visit(reader, dark=dark).page
    open_panels(page)
    speak(page, "Hello.")
    state(page, "over")
    script = CONTRAST.read_text(encoding="utf-8")
    pale = page.evaluate(script)
    assert pale["checked"] > 30
    assert pale["faults"] == []
    page.evaluate("document.querySelector('[data-part=state]').style.color = '#8888'")
    assert len(page.evaluate(script)["faults"]) == 1
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")
    page.evaluate("document.querySelector('[data-part=state]').style.color = ''")
    page.wait_for_timeout(300)
    assert page.evaluate(script)["faults"] == []


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_it_fits_a_phone(visit: Visit, reader: Running, language: str) -> None:
    page = visit(reader, width=320, language=language).page
    open_panels(page)
    speak(page, "Hello, a rather long text that has to find its place on a small screen. " * 2)
    page.keyboard.press("Escape")
    state(page, "stopped")
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    beyond = (
        "[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > 321).length"
    )
    assert page.evaluate(beyond) == 0


# --- policy and key --------------------------------------------------------------------------------------------------


def test_the_policy_holds_in_the_browser(browser: Browser, reader: Running) -> None:
    """The control of all tests that see no request leave: one that tries is stopped, and so is an inline script."""
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
    away = "fetch('http://127.0.0.2:9/').then(() => 'answered', (error) => error.name)"
    assert page.evaluate(away) == "TypeError"
    refused = page.evaluate(
        """() => new Promise((resolve) => {
          addEventListener("securitypolicyviolation", ({ effectiveDirective }) => resolve(effectiveDirective));
          fetch("http://127.0.0.2:9/").catch(() => {});
        })"""
    )
    assert refused == "connect-src"
    context.close()


def test_a_server_with_a_key_is_asked_for_it(browser: Browser, tiny_checkpoint: TinyCheckpoint) -> None:
    """The key goes where headers go, and into a subprotocol where they cannot; a wrong one opens nothing."""
    config = ServerConfig(model_id="tiny-embedded", api_key="secret-key", warm_up=False)
    with load(tiny_checkpoint("tiny-embedded"), positions=512) as tts, running(tts, config) as server:
        context = browser.new_context(locale="en")
        watched = Watched(context.new_page(), server.url)
        watched.open()
        for key in ("wrong", "secret-key"):
            expect(watched.page.locator("#key")).to_be_visible()
            expect(watched.page.locator(".card")).to_have_count(0)
            watched.page.locator("#key-field").fill(key)
            watched.page.locator("#key button").click()
        expect(watched.page.locator("#key")).to_be_hidden()
        speak(watched.page, "Hello.")
        state(watched.page, "over")
        assert {"401" in message for message in watched.messages} == {True}
        context.close()


def test_a_server_that_goes_away_is_told_in_words(browser: Browser, tiny_checkpoint: TinyCheckpoint) -> None:
    """What had come is played to its end; a further try says that nobody is there."""
    config = ServerConfig(model_id="tiny-embedded", warm_up=False, drain_s=0.1)
    context = browser.new_context(locale="en")
    with load(tiny_checkpoint("tiny-embedded"), positions=512) as tts:
        with running(tts, config) as server:
            watched = Watched(context.new_page(), server.url)
            watched.open()
            speak(watched.page, "One, two, three, four, five, six, seven, eight, nine, ten. " * 9)
            expect(watched.page.locator(".card")).to_have_attribute("data-state", "speaking")
        state(watched.page, "failed")
        expect(watched.page.locator("[data-part=fault]")).to_have_text("The connection broke off.")
        speak(watched.page, "Is anybody there?")
        expect(watched.page.locator("[data-part=fault]")).to_contain_text("cannot be reached")
    context.close()
