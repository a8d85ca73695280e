"""Playback of the page: exactly the sent samples, immediate silence after a stop, no old audio after a barge-in.

Samples are recorded at the output of the session's audio worklet.
"""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.audio import QUANTUM, messages, sent, sounding, tapped, trimmed
from tests.browser.chromium import ObservedPage
from tests.browser.conftest import Visit
from tests.server.running import Running, wait_for

SHORT = "Hello there, this is a test."
LONG = "A long text that is interrupted before its end, and it goes on and on. " * 6
SAMPLE_RATE_HZ = 24_000
STOP_MS = 100
FADE_SAMPLES = 128


def speak(page: Page, text: str, *, session: int = 0, button: str = "speak") -> None:
    card = page.locator(".card").nth(session)
    card.locator("[data-part=text]").fill(text)
    card.locator(f"[data-part={button}]").click()


def state(page: Page, wanted: str, *, session: int = 0) -> None:
    expect(page.locator(".card").nth(session)).to_have_attribute("data-state", wanted)


def set_start_buffer(page: Page, milliseconds: int) -> None:
    """Buffer audio before playback starts, so that a busy machine causes no underrun."""
    page.locator(".settings summary").first.click()
    page.locator("[name=startBuffer]").first.select_option(str(milliseconds))


def wait_for_playback(page: Page) -> None:
    """Wait until more than a quarter of a second was played."""
    sounding_quanta = "taps[0] ? taps[0].samples.filter((each) => each.some(Boolean)).length : 0"
    wait_for(lambda: page.evaluate(sounding_quanta) > 50)


def test_played_samples_equal_sent_samples(visit: Visit, reader: Running) -> None:
    """They also equal the engine's output, and utterances on one socket play one after another."""
    observed = visit(reader)
    set_start_buffer(observed.page, 500)
    speak(observed.page, SHORT)
    speak(observed.page, "And more of it.")
    expect(observed.page.locator(".log li[data-state=finished]")).to_have_count(2)
    (socket,) = observed.sockets
    both = np.concatenate([sent(socket, 0), sent(socket, 1)])
    played = tapped(observed.page).samples
    assert np.array_equal(sounding(played), sounding(both))
    if "underruns" not in observed.page.locator(".log").inner_text():
        assert np.array_equal(trimmed(played), trimmed(both))
    expected = reader.tts.say(iter([SHORT]), voice=reader.state.names.speakers[0]).samples
    first = sent(socket, 0)
    assert len(first) == len(expected)
    assert np.abs(first - np.clip(np.rint(expected * 32768), -32768, 32767)).max() <= 1


def test_parallel_sessions_play_their_own_audio(visit: Visit, reader: Running) -> None:
    observed = visit(reader)
    observed.page.locator("#add").click()
    texts = ("The first one says this.", "And the second one says that.")
    for index, text in enumerate(texts):
        observed.page.locator("[data-part=text]").nth(index).fill(text)
    observed.page.locator("[data-voice]").nth(1).select_option(index=1)
    observed.page.locator("#all").click()
    for index in (0, 1):
        state(observed.page, "finished", session=index)
    for socket in observed.sockets:
        (start,) = messages(socket, "audio.start")
        index = texts.index(str(start["sentence_text"]))
        assert np.array_equal(
            sounding(tapped(observed.page, tap_of(observed, index)).samples), sounding(sent(socket, 0))
        )


def tap_of(observed: ObservedPage, session: int) -> int:
    """Index of a session's tap: queues are created in the order in which sessions first speak."""
    assert observed.page.evaluate("taps.length") == 2
    return session


@pytest.mark.parametrize("method", ["button", "key"])
def test_stop_silences_playback_immediately(visit: Visit, reader: Running, method: str) -> None:
    observed = visit(reader)
    set_start_buffer(observed.page, 1000)
    speak(observed.page, LONG)
    wait_for_playback(observed.page)
    stop = {
        "button": "document.querySelector('[data-part=stop]').click()",
        "key": "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))",
    }
    stopped_ms = observed.page.evaluate(f"() => {{ const now = Date.now(); {stop[method]}; return now; }}")
    state(observed.page, "stopped")
    observed.page.wait_for_timeout(700)
    heard = tapped(observed.page)
    assert heard.clock_ms[-1] > stopped_ms + 500, "the device keeps running"
    assert heard.last_sound_ms() - stopped_ms < STOP_MS
    dropped = len(sounding(sent(observed.sockets[0], 0))) - len(sounding(heard.samples))
    assert dropped > 0.2 * SAMPLE_RATE_HZ, "audio was dropped by the stop"


def test_no_old_audio_is_played_after_a_barge_in(visit: Visit, reader: Running) -> None:
    """Played: the old utterance up to the reported position, a fade, and the whole new utterance."""
    observed = visit(reader)
    set_start_buffer(observed.page, 1000)
    speak(observed.page, LONG)
    wait_for_playback(observed.page)
    speak(observed.page, SHORT, button="interrupt")
    state(observed.page, "finished")
    (socket,) = observed.sockets
    (cancel,) = messages(socket, "input.cancel")
    (answer,) = messages(socket, "input.cancelled")
    assert isinstance(answer["utterances"], list)
    (report,) = answer["utterances"]
    played = cancel["played_through_sample"]
    assert isinstance(played, int)
    assert played > 0.25 * SAMPLE_RATE_HZ
    assert len(sent(socket, 0)) - played > 0.2 * SAMPLE_RATE_HZ, "audio was dropped by the stop"
    assert (report["played_samples"], report["played_by"]) == (played, "acknowledged")
    old, new = sent(socket, 0), sounding(sent(socket, 1))
    heard = sounding(tapped(observed.page).samples)
    assert np.array_equal(heard[-len(new) :], new)
    before, expected = heard[: -len(new)], sounding(old[:played])
    assert np.array_equal(before[: len(expected)], expected)
    assert len(before) - len(expected) <= FADE_SAMPLES
    entry = observed.page.locator(".log li[data-state=stopped]")
    assert entry.locator(".heard").inner_text() == str(report["heard_text"])
    assert entry.locator(".spoken").inner_text() == LONG.strip()


def test_first_sound_is_measured_and_reported(visit: Visit, reader: Running) -> None:
    """The stages sum to the first sound, and the server stores the page's report."""
    observed = visit(reader)
    speak(observed.page, SHORT)
    state(observed.page, "finished")
    (start,) = messages(observed.sockets[0], "audio.start")
    client, request_id = reader.client(), str(start["request_id"])
    wait_for(lambda: "first_audible_ms" in str(client.request(request_id)["playout"]))
    record = client.request(request_id)
    playout = record["playout"]
    assert isinstance(playout, dict)
    assert 0 < playout["first_bytes_ms"] <= playout["first_sound_ms"] <= playout["first_audible_ms"] < 60_000
    timing = record["timing"]
    assert isinstance(timing, list)
    assert timing[0]["first_packet_ms"] < playout["first_sound_ms"]
    shown = [text.rsplit(" ", 2)[1] for text in observed.page.locator(".stages li").all_inner_texts()]
    figure, unit = observed.page.locator("[data-figure=firstSound]").inner_text().split()
    total_ms = float(figure) * (1000 if unit == "s" else 1)
    assert len(shown) == 10
    assert abs(sum(map(float, shown)) - total_ms) <= 0.01 * total_ms + 5


def test_control_tap_detects_a_single_wrong_sample(visit: Visit, reader: Running) -> None:
    """Negative control: one sample of each packet is changed on its way to the worklet."""
    observed = visit(reader)
    observed.page.evaluate(
        """() => {
          const { postMessage } = MessagePort.prototype;
          MessagePort.prototype.postMessage = function (message, ...rest) {
            if (message.kind === "put") message.samples[QUANTUM] ^= 1;
            return postMessage.call(this, message, ...rest);
          };
        }""".replace("QUANTUM", str(QUANTUM))
    )
    speak(observed.page, SHORT)
    state(observed.page, "finished")
    played, expected = sounding(tapped(observed.page).samples), sounding(sent(observed.sockets[0], 0))
    assert not np.array_equal(played, expected)
