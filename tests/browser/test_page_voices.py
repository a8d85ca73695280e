"""Voices on the page: built-in voices, cloning from a recording, and models that cannot clone."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import expect

from legato.api import load
from legato.config.server import ServerConfig
from tests.browser.audio import messages, sent, sounding, tapped
from tests.browser.conftest import Visit
from tests.browser.test_page_sound import speak, state
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running


def recording(folder: Path, seconds: float) -> Path:
    """A stereo FLAC file at 44.1 kHz."""
    t = np.arange(round(44_100 * seconds)) / 44_100
    tone = 0.3 * np.sin(2 * np.pi * 180 * t)
    path = folder / "tone.flac"
    soundfile.write(path, np.stack([tone, tone], axis=1), 44_100)
    return path


def test_cloning_is_not_offered_if_the_model_cannot(visit: Visit, reader: Running) -> None:
    """The built-in voices are listed, and the selected one is used."""
    observed = visit(reader)
    panel = observed.page.locator("[data-cloning]")
    panel.locator("summary").click()
    expect(panel).to_contain_text("cannot clone")
    assert panel.locator("button, input").count() == 0
    names = observed.page.locator("[data-voice] option").all_inner_texts()
    assert names == sorted(reader.state.names.speakers)
    observed.page.locator("[data-voice]").select_option(names[1])
    speak(observed.page, "Hello.")
    state(observed.page, "finished")
    assert [each["voice"] for each in messages(observed.sockets[0], "session.config")][-1] == names[1]


def test_microphone_recording_is_cloned(visit: Visit, cloner: Running) -> None:
    observed = visit(cloner)
    speak(observed.page, "Hello.")
    panel = observed.page.locator("[data-cloning]")
    expect(panel).to_have_attribute("open", "")  # no voice yet: the page opens the cloning panel
    panel.locator("[data-clone=record]").click()
    observed.page.wait_for_timeout(1800)
    panel.locator("[data-clone=record]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("recorded")
    speak(observed.page, "Hello.")
    state(observed.page, "finished")
    (config,) = messages(observed.sockets[0], "session.config")
    assert str(config["ref_audio"]).startswith("data:audio/wav;base64,")
    assert np.array_equal(sounding(tapped(observed.page).samples), sounding(sent(observed.sockets[0], 0)))


def test_file_is_saved_as_a_voice_and_deleted(visit: Visit, cloner: Running, tmp_path: Path) -> None:
    """The page uploads mono audio at the model's sample rate."""
    observed = visit(cloner)
    panel = observed.page.locator("[data-cloning]")
    panel.locator("summary").click()
    panel.locator("[data-clone=file]").set_input_files(recording(tmp_path, 1.5))
    expect(panel.locator("[data-clone=status]")).to_contain_text("1.5 s recorded")
    panel.locator("[data-clone=name]").fill("Tone")
    panel.locator("[data-clone=transcript]").fill("A tone.")
    panel.locator("[data-clone=save]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("saved")
    (voice,) = cloner.state.voices.voices()
    assert (voice.name, voice.transcript, voice.seconds) == ("Tone", "A tone.", 1.5)
    samples, rate_hz = soundfile.read(io.BytesIO(cloner.state.voices.recording(voice).read_bytes()))
    assert (samples.ndim, rate_hz) == (1, cloner.tts.sample_rate_hz)
    assert 0.25 < np.abs(samples).max() < 0.35
    speak(observed.page, "Hello.")
    state(observed.page, "finished")
    assert messages(observed.sockets[0], "session.config")[-1]["voice"] == "Tone"
    panel.locator("[data-clone=delete]").click()
    expect(panel.locator("[data-clone=status]")).to_contain_text("deleted")
    assert cloner.state.voices.voices() == []


def test_rejected_settings_are_shown_and_nothing_is_spoken(visit: Visit, cloner: Running) -> None:
    """The selected voice was deleted meanwhile; no other voice is used instead."""
    samples = 0.3 * np.sin(np.arange(36_000) / 20).astype(np.float32)
    cloner.state.voices.add("Gone", samples, 24_000, "")
    observed = visit(cloner)
    expect(observed.page.locator("[data-voice]")).to_have_value("voice:Gone")
    cloner.state.voices.delete("Gone")
    observed.page.locator(".settings summary").click()
    observed.page.locator("[name=seed]").fill("7")
    speak(observed.page, "Hello.")
    state(observed.page, "failed")
    expect(observed.page.locator("[data-part=error]")).to_contain_text("unknown voice 'Gone'")
    observed.page.wait_for_timeout(500)
    (socket,) = observed.sockets
    assert len(messages(socket, "input.cancel")) == len(messages(socket, "input.cancelled")) == 1
    assert not sounding(tapped(observed.page).samples).size


def test_unusable_files_are_rejected_with_a_message(visit: Visit, cloner: Running, tmp_path: Path) -> None:
    observed = visit(cloner)
    panel = observed.page.locator("[data-cloning]")
    panel.locator("summary").click()
    text = tmp_path / "text.wav"
    text.write_text("no sound at all")
    for file, message in ((text, "cannot decode"), (recording(tmp_path, 0.4), "at least one second")):
        panel.locator("[data-clone=file]").set_input_files(file)
        expect(panel.locator("[data-clone=status]")).to_contain_text(message)
    expect(panel.locator("[data-clone=result]")).to_be_hidden()


def test_page_lists_several_models_and_uses_the_selected_one(visit: Visit, tiny_checkpoint: TinyCheckpoint) -> None:
    with (
        load(tiny_checkpoint("tiny-embedded"), max_seq_len=512) as first,
        load(tiny_checkpoint("tiny-custom-voice"), max_seq_len=512) as second,
        running({"first": first, "second": second}, ServerConfig(warm_up=False)) as server,
    ):
        page = visit(server).page
        models = page.get_by_label("Model", exact=True)
        expect(models).to_have_value("first")
        assert models.locator("option").all_inner_texts() == ["first", "second"]
        with page.expect_navigation():
            models.select_option("second")
        expect(models).to_have_value("second")
        names = page.locator("[data-voice] option").all_inner_texts()
        assert names == sorted(voice.name for voice in second.voices())
        before = sum(second.stats().outcomes.values())
        speak(page, "Hello.")
        state(page, "finished")
        assert sum(second.stats().outcomes.values()) == before + 1
