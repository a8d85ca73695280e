"""What the page plays: the samples that were sent, silence at once on a stop, and nothing old after a barge-in.

Samples are taken where the session's worklet hands them to the device.
"""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Watched
from tests.browser.conftest import Visit
from tests.browser.heard import QUANTUM, messages, sent, sounding, tapped, trimmed
from tests.server.running import Running, wait_for

SHORT = "Hello there, this is a test."
LONG = "A long speech that somebody will break off, and it goes on and on. " * 6
SAMPLE_RATE_HZ = 24_000
STOP_MS = 100
FADE_SAMPLES = 128


def speak(page: Page, text: str, *, session: int = 0, button: str = "speak") -> None:
    card = page.locator(".card").nth(session)
    card.locator("[data-part=text]").fill(text)
    card.locator(f"[data-part={button}]").click()


def state(page: Page, wanted: str, *, session: int = 0) -> None:
    expect(page.locator(".card").nth(session)).to_have_attribute("data-state", wanted)


def collect(page: Page, milliseconds: int) -> None:
    """Let the page collect so much before it plays, so that a busy machine makes no pause."""
    page.locator(".settings summary").first.click()
    page.locator("[name=collect]").first.select_option(str(milliseconds))


def begun(page: Page) -> None:
    """Wait until more than a quarter of a second was heard."""
    heard = "taps[0] ? taps[0].samples.filter((each) => each.some(Boolean)).length : 0"
    wait_for(lambda: page.evaluate(heard) > 50)


def test_what_is_played_is_what_was_sent(visit: Visit, reader: Running) -> None:
    """And that is what the engine says; several utterances on one socket follow each other."""
    watched = visit(reader)
    collect(watched.page, 500)
    speak(watched.page, SHORT)
    speak(watched.page, "And more of it.")
    expect(watched.page.locator(".log li[data-state=over]")).to_have_count(2)
    (socket,) = watched.sockets
    both = np.concatenate([sent(socket, 0), sent(socket, 1)])
    played = tapped(watched.page).samples
    assert np.array_equal(sounding(played), sounding(both))
    if "ran dry" not in watched.page.locator(".log").inner_text():
        assert np.array_equal(trimmed(played), trimmed(both))
    said = reader.tts.say(iter([SHORT]), voice=reader.state.names.speakers[0]).samples
    first = sent(socket, 0)
    assert len(first) == len(said)
    assert np.abs(first - np.clip(np.rint(said * 32768), -32768, 32767)).max() <= 1


def test_sessions_side_by_side_each_play_their_own(visit: Visit, reader: Running) -> None:
    watched = visit(reader)
    watched.page.locator("#add").click()
    texts = ("The first one says this.", "And the second one says that.")
    for index, text in enumerate(texts):
        watched.page.locator("[data-part=text]").nth(index).fill(text)
    watched.page.locator("[data-voice]").nth(1).select_option(index=1)
    watched.page.locator("#all").click()
    for index in (0, 1):
        state(watched.page, "over", session=index)
    for socket in watched.sockets:
        (begun,) = messages(socket, "audio.start")
        index = texts.index(str(begun["sentence_text"]))
        assert np.array_equal(sounding(tapped(watched.page, tap_of(watched, index)).samples), sounding(sent(socket, 0)))


def tap_of(watched: Watched, session: int) -> int:
    """Queues are opened in the order in which sessions first speak, which is theirs."""
    assert watched.page.evaluate("taps.length") == 2
    return session


@pytest.mark.parametrize("way", ["button", "key"])
def test_a_stop_is_silent_at_once(visit: Visit, reader: Running, way: str) -> None:
    watched = visit(reader)
    collect(watched.page, 1000)
    speak(watched.page, LONG)
    begun(watched.page)
    stop = {
        "button": "document.querySelector('[data-part=stop]').click()",
        "key": "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))",
    }
    stopped_ms = watched.page.evaluate(f"() => {{ const now = Date.now(); {stop[way]}; return now; }}")
    state(watched.page, "stopped")
    watched.page.wait_for_timeout(700)
    heard = tapped(watched.page)
    assert heard.clock_ms[-1] > stopped_ms + 500, "the device went on"
    assert heard.last_sound_ms() - stopped_ms < STOP_MS
    waiting = len(sounding(sent(watched.sockets[0], 0))) - len(sounding(heard.samples))
    assert waiting > 0.2 * SAMPLE_RATE_HZ, "there was more to hear"


def test_nothing_of_the_old_utterance_is_heard_after_a_barge_in(visit: Visit, reader: Running) -> None:
    """What is heard is the start of the old one up to what the server is told, a fade, and the whole new one."""
    watched = visit(reader)
    collect(watched.page, 1000)
    speak(watched.page, LONG)
    begun(watched.page)
    speak(watched.page, SHORT, button="over")
    state(watched.page, "over")
    (socket,) = watched.sockets
    (cancel,) = messages(socket, "input.cancel")
    (answer,) = messages(socket, "input.cancelled")
    assert isinstance(answer["utterances"], list)
    (report,) = answer["utterances"]
    played = cancel["played_through_sample"]
    assert isinstance(played, int)
    assert played > 0.25 * SAMPLE_RATE_HZ
    assert len(sent(socket, 0)) - played > 0.2 * SAMPLE_RATE_HZ, "there was more to hear"
    assert (report["played_samples"], report["played_by"]) == (played, "acknowledged")
    old, new = sent(socket, 0), sounding(sent(socket, 1))
    heard = sounding(tapped(watched.page).samples)
    assert np.array_equal(heard[-len(new) :], new)
    before, truth = heard[: -len(new)], sounding(old[:played])
    assert np.array_equal(before[: len(truth)], truth)
    assert len(before) - len(truth) <= FADE_SAMPLES
    entry = watched.page.locator(".log li[data-state=stopped]")
    assert entry.locator(".heard").inner_text() == str(report["heard_text"])
    assert entry.locator(".said").inner_text() == LONG.strip()


def test_the_first_sound_is_measured_and_reported(visit: Visit, reader: Running) -> None:
    """The stages sum to it, and the server keeps what the page tells."""
    watched = visit(reader)
    speak(watched.page, SHORT)
    state(watched.page, "over")
    (start,) = messages(watched.sockets[0], "audio.start")
    client, request_id = reader.client(), str(start["request_id"])
    wait_for(lambda: "first_audible_ms" in str(client.request(request_id)["playout"]))
    record = client.request(request_id)
    playout = record["playout"]
    assert isinstance(playout, dict)
    assert 0 < playout["first_bytes_ms"] <= playout["first_sound_ms"] <= playout["first_audible_ms"] < 60_000
    timing = record["timing"]
    assert isinstance(timing, list)
    assert timing[0]["first_packet_ms"] < playout["first_sound_ms"]
    shown = [text.rsplit(" ", 2)[1] for text in watched.page.locator(".stages li").all_inner_texts()]
    figure, unit = watched.page.locator("[data-figure=firstSound]").inner_text().split()
    total_ms = float(figure) * (1000 if unit == "s" else 1)
    assert len(shown) == 10
    assert abs(sum(map(float, shown)) - total_ms) <= 0.01 * total_ms + 5


def test_the_tap_would_see_a_single_wrong_sample(visit: Visit, reader: Running) -> None:
    """The control: a page whose worklet changes one sample of each packet is caught."""
    watched = visit(reader)
    watched.page.evaluate(
        """() => {
          const { postMessage } = MessagePort.prototype;
          MessagePort.prototype.postMessage = function (message, ...rest) {
            if (message.kind === "put") message.samples[QUANTUM] ^= 1;
            return postMessage.call(this, message, ...rest);
          };
        }""".replace("QUANTUM", str(QUANTUM))
    )
    speak(watched.page, SHORT)
    state(watched.page, "over")
    played, truth = sounding(tapped(watched.page).samples), sounding(sent(watched.sockets[0], 0))
    assert not np.array_equal(played, truth)
