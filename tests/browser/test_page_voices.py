"""Who speaks on the page: voices of the model, recordings where it clones, and a plain word where it does not."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.heard import messages, sent, sounding, tapped
from tests.browser.test_page_sound import speak, state
from tests.server.running import Running


def recording(folder: Path, seconds: float) -> Path:
    """A stereo FLAC file at another rate than the model's."""
    t = np.arange(round(44_100 * seconds)) / 44_100
    tone = 0.3 * np.sin(2 * np.pi * 180 * t)
    path = folder / "tone.flac"
    soundfile.write(path, np.stack([tone, tone], axis=1), 44_100)
    return path


def test_cloning_is_not_offered_where_the_model_cannot(visit: Visit, reader: Running) -> None:
    """The voices of the server are, and the one that is picked speaks."""
    watched = visit(reader)
    panel = watched.page.locator("[data-cloning]")
    panel.locator("summary").click()
    expect(panel).to_contain_text("cannot clone")
    assert panel.locator("button, input").count() == 0
    names = watched.page.locator("[data-voice] option").all_inner_texts()
    assert names == sorted(reader.state.names.speakers)
    watched.page.locator("[data-voice]").select_option(names[1])
    speak(watched.page, "Hello.")
    state(watched.page, "over")
    assert [each["voice"] for each in messages(watched.sockets[0], "session.config")][-1] == names[1]


def test_a_recording_from_the_microphone_speaks(visit: Visit, cloner: Running) -> None:
    watched = visit(cloner)
    speak(watched.page, "Hello.")
    panel = watched.page.locator("[data-cloning]")
    expect(panel).to_have_attribute("open", "")  # there is no voice yet, so the page shows where one comes from
    panel.locator("[data-clone=record]").click()
    watched.page.wait_for_timeout(1800)
    panel.locator("[data-clone=record]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("recorded")
    speak(watched.page, "Hello.")
    state(watched.page, "over")
    (config,) = messages(watched.sockets[0], "session.config")
    assert str(config["ref_audio"]).startswith("data:audio/wav;base64,")
    assert np.array_equal(sounding(tapped(watched.page).samples), sounding(sent(watched.sockets[0], 0)))


def test_a_file_is_kept_as_a_voice_and_forgotten(visit: Visit, cloner: Running, tmp_path: Path) -> None:
    """What is sent is mono at the model's rate, whatever the file was."""
    watched = visit(cloner)
    panel = watched.page.locator("[data-cloning]")
    panel.locator("summary").click()
    panel.locator("[data-clone=file]").set_input_files(recording(tmp_path, 1.5))
    expect(panel.locator("[data-clone=status]")).to_contain_text("1.5 s recorded")
    panel.locator("[data-clone=name]").fill("Tone")
    panel.locator("[data-clone=transcript]").fill("A tone.")
    panel.locator("[data-clone=keep]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("is kept")
    (kept,) = cloner.state.voices.kept()
    assert (kept.name, kept.transcript, kept.seconds) == ("Tone", "A tone.", 1.5)
    samples, rate_hz = soundfile.read(io.BytesIO(cloner.state.voices.recording(kept).read_bytes()))
    assert (samples.ndim, rate_hz) == (1, cloner.tts.sample_rate_hz)
    assert 0.25 < np.abs(samples).max() < 0.35
    speak(watched.page, "Hello.")
    state(watched.page, "over")
    assert messages(watched.sockets[0], "session.config")[-1]["voice"] == "Tone"
    panel.locator("[data-clone=forget]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("is forgotten")
    assert cloner.state.voices.kept() == []


def test_refused_settings_are_told_and_nothing_is_spoken_with_others(visit: Visit, cloner: Running) -> None:
    """A voice that somebody else deletes meanwhile; the model's other voices are not taken instead."""
    samples = 0.3 * np.sin(np.arange(36_000) / 20).astype(np.float32)
    cloner.state.voices.keep("Gone", samples, 24_000, "")
    watched = visit(cloner)
    expect(watched.page.locator("[data-voice]")).to_have_value("voice:Gone")
    cloner.state.voices.delete("Gone")
    watched.page.locator(".settings summary").click()
    watched.page.locator("[name=seed]").fill("7")
    speak(watched.page, "Hello.")
    state(watched.page, "failed")
    expect(watched.page.locator("[data-part=fault]")).to_contain_text("no voice 'Gone'")
    watched.page.wait_for_timeout(500)
    (socket,) = watched.sockets
    assert len(messages(socket, "input.cancel")) == len(messages(socket, "input.cancelled")) == 1
    assert not sounding(tapped(watched.page).samples).size


def test_what_is_no_sound_is_refused_in_words(visit: Visit, cloner: Running, tmp_path: Path) -> None:
    watched = visit(cloner)
    panel = watched.page.locator("[data-cloning]")
    panel.locator("summary").click()
    text = tmp_path / "text.wav"
    text.write_text("no sound at all")
    for file, words in ((text, "cannot read"), (recording(tmp_path, 0.4), "At least one second")):
        panel.locator("[data-clone=file]").set_input_files(file)
        expect(panel.locator("[data-clone=status]")).to_contain_text(words)
    expect(panel.locator("[data-clone=made]")).to_be_hidden()
