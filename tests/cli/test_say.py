"""`legato say` with a model that is faked: what reaches the model, where the sound goes, what is told, how it ends."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from legato.cli import say as say_module
from legato.cli.main import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, main
from legato.errors import GenerationError, UnknownVoiceError
from legato.flow import FinishReason, TextLayout
from tests.audio.packets import RATE_HZ, cut, speechlike
from tests.cli.fakes import FakeLegato

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLegato:
    fake = FakeLegato()
    monkeypatch.setattr(say_module, "load_chosen", lambda _choice: fake)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input as a pipe; the fixture is its writing end."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "r") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        yield writer


def test_the_default_writes_out_wav_and_tells_how_it_went(model: FakeLegato, capfd: Capture) -> None:
    assert main(["say", "Hello", "there."]) == EXIT_OK
    assert model.texts == [["Hello there."]]
    info = soundfile.info("out.wav")
    assert (info.frames, info.samplerate, info.channels) == (round(0.8 * RATE_HZ), RATE_HZ, 1)
    told = capfd.readouterr()
    assert told.out == ""
    assert "4 packets | 0.80 s of audio | real-time factor" in told.err
    assert re.search(r"first packet \d\.\d\d s", told.err)
    assert "finished: eos (the model said that it was done) after 10 frames; limit: 77 frames" in told.err
    assert "input wait 250 ms, queue 0 ms, prefill 250 ms" in told.err
    assert "wrote out.wav" in told.err
    assert model.closed


def test_raw_samples_are_alone_on_standard_output(model: FakeLegato, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """CASES R70."""
    assert main(["say", "Hello.", "-o", "-"]) == EXIT_OK
    out = capfdbinary.readouterr().out
    assert out == b"".join(packet.int16().tobytes() for packet in cut(speechlike(0.8)))
    assert not list(Path().iterdir())
    assert model.closed


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "opus", "ogg", "pcm"])
def test_the_ending_chooses_the_format(model: FakeLegato, ending: str) -> None:
    assert main(["say", "Hello.", "-o", f"x.{ending}"]) == EXIT_OK
    data = Path(f"x.{ending}").read_bytes()
    if ending == "pcm":
        assert len(data) == 2 * round(0.8 * RATE_HZ)
    else:
        assert len(soundfile.read(io.BytesIO(data))[0]) == round(0.8 * RATE_HZ)
    assert model.closed


def test_every_option_reaches_the_model(model: FakeLegato) -> None:
    speech = ["--voice", "Ryan", "--language", "English", "--instruct", "Slowly.", "--seed", "7", "--max-frames", "9"]
    layout = ["--packet-frames", "1,3", "--layout", "whole"]
    coarse = ["--temperature", "0.5", "--top-k", "9", "--top-p", "0.8", "--repetition-penalty", "1.1"]
    fine = ["--predictor-temperature", "0.4", "--predictor-top-k", "0", "--predictor-top-p", "1"]
    assert main(["say", "Hello.", *speech, *layout, *coarse, *fine]) == EXIT_OK
    assert model.asked == [
        {
            "voice": "Ryan",
            "language": "English",
            "instruct": "Slowly.",
            "clone": None,
            "seed": 7,
            "packet_frames": (1, 3),
            "max_frames": 9,
            "layout": TextLayout.WHOLE,
            "temperature": 0.5,
            "top_k": 9,
            "top_p": 0.8,
            "repetition_penalty": 1.1,
            "predictor_temperature": 0.4,
            "predictor_top_k": 0,
            "predictor_top_p": 1.0,
        }
    ]


def test_what_is_not_given_is_left_to_the_checkpoint(model: FakeLegato) -> None:
    assert main(["say", "Hello."]) == EXIT_OK
    assert set(model.asked[0]) == {
        *("voice", "language", "instruct", "clone", "seed", "packet_frames", "max_frames", "layout")
    }
    assert model.asked[0]["packet_frames"] == (1, 2, 4)
    assert model.asked[0]["layout"] is None


def test_greedy_is_both_temperatures_0(model: FakeLegato) -> None:
    assert main(["say", "Hello.", "--greedy"]) == EXIT_OK
    assert (model.asked[0]["temperature"], model.asked[0]["predictor_temperature"]) == (0.0, 0.0)
    assert main(["say", "Hello.", "--greedy", "--temperature", "1"]) == EXIT_REFUSED


def test_a_clone_takes_its_recording_and_transcript(model: FakeLegato) -> None:
    assert main(["say", "Hello.", "--clone", "me.wav", "--ref-text", "It is me."]) == EXIT_OK
    clone = model.asked[0]["clone"]
    assert (str(getattr(clone, "audio", "")), getattr(clone, "transcript", "")) == ("me.wav", "It is me.")
    assert main(["say", "Hello.", "--ref-text", "It is me."]) == EXIT_REFUSED


def test_text_from_a_file(model: FakeLegato, capfd: Capture) -> None:
    Path("story.txt").write_bytes(b"\xef\xbb\xbfCaf\xc3\xa9.\n")
    assert main(["say", "-f", "story.txt"]) == EXIT_OK
    assert model.texts == [["Café.\n"]]
    Path("latin.txt").write_bytes(b"Caf\xe9.")
    assert main(["say", "-f", "latin.txt"]) == EXIT_REFUSED
    assert "error in text: latin.txt is not UTF-8: byte 3 is 0xe9" in capfd.readouterr().err
    assert main(["say", "-f", "absent.txt"]) != EXIT_OK
    assert main(["say", "Hello.", "-f", "story.txt"]) == EXIT_REFUSED


@pytest.mark.parametrize("arguments", [[], ["-"], ["-f", "-"]])
def test_text_from_a_pipe_comes_as_it_arrives(model: FakeLegato, pipe: int, arguments: list[str]) -> None:
    """Each piece reaches the model before the next one is written, also when a character's bytes are cut."""
    arrived = threading.Semaphore(0)
    taken: list[str] = []
    original = model.stream

    def stream(text: Iterator[str], **asked: object) -> object:
        def heard() -> Iterator[str]:
            for piece in text:
                taken.append(piece)
                arrived.release()
                yield piece

        return original(heard(), **asked)

    model.stream = stream  # type: ignore[assignment, method-assign]
    orderly: list[bool] = []

    def write() -> None:
        for data in (b"Hello ", b"caf\xc3", b"\xa9", b"."):
            os.write(pipe, data)
            orderly.append(arrived.acquire(timeout=10))
        os.close(pipe)

    writer = threading.Thread(target=write)
    writer.start()
    assert main(["say", *arguments]) == EXIT_OK
    writer.join()
    assert taken == ["Hello ", "caf", "é", "."]
    assert orderly == [True] * 4


def test_a_redirected_file_is_whole(model: FakeLegato, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("story.txt").write_text("All of it is there.")
    with Path("story.txt").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["say"]) == EXIT_OK
    assert model.texts == [["All of it is there."]]
    assert isinstance(model.texts[0], list)


@pytest.mark.parametrize("reason", [FinishReason.BUDGET, FinishReason.SILENCE, FinishReason.REPEAT])
def test_an_uneasy_end_is_told(model: FakeLegato, capfd: Capture, reason: FinishReason) -> None:
    model.reason = reason
    assert main(["say", "Hello."]) == EXIT_OK
    told = capfd.readouterr().err
    assert f"finished: {reason.value}" in told
    assert "another --seed" in told


def test_the_limit_told_is_the_one_in_force(model: FakeLegato, capfd: Capture) -> None:
    """CASES R25."""
    model.reason = FinishReason.MAX_FRAMES
    assert main(["say", "Hello.", "--max-frames", "10"]) == EXIT_OK
    assert "after 10 frames; limit: 10 frames (--max-frames)" in capfd.readouterr().err


def test_notes_of_the_model_are_told(model: FakeLegato, capfd: Capture) -> None:
    model.notes = ("without --ref-text the clone is less like",)
    assert main(["say", "Hello."]) == EXIT_OK
    assert "legato: without --ref-text the clone is less like\n" in capfd.readouterr().err


def test_an_interrupt_cancels_and_leaves_a_playable_file(model: FakeLegato, capfd: Capture) -> None:
    def interrupt(index: int) -> None:
        if index == 2:
            raise KeyboardInterrupt

    model.before = interrupt
    assert main(["say", "Hello."]) == EXIT_INTERRUPTED
    told = capfd.readouterr().err
    assert "cancelled after 2 packets" in told
    assert "Traceback" not in told
    assert model.streams[0].cancelled
    assert model.closed
    assert soundfile.info("out.wav").frames == 1920 + 3840


def test_an_error_before_the_first_packet_leaves_an_older_file(model: FakeLegato, capfd: Capture) -> None:
    def fail(index: int) -> None:
        raise UnknownVoiceError(f"no voice at {index}; there are a, b", field="voice")

    model.before = fail
    Path("out.wav").write_bytes(b"older")
    assert main(["say", "Hello."]) == EXIT_REFUSED
    assert capfd.readouterr().err.splitlines()[-1] == "legato: error in voice: no voice at 0; there are a, b"
    assert Path("out.wav").read_bytes() == b"older"


def test_an_error_on_the_way_leaves_what_was_spoken(model: FakeLegato) -> None:
    def fail(index: int) -> None:
        if index:
            raise GenerationError("broken")

    model.before = fail
    assert main(["say", "Hello."]) == EXIT_REFUSED
    assert np.array_equal(soundfile.read("out.wav", dtype="int16")[0], cut(speechlike(0.8))[0].int16())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["say", "Hello.", "-o", "x.xyz"], "names no audio format"),
        (["say", "Hello.", "-o", "no/such/x.wav"], "error in output: there is no folder"),
        (["say", ""], "error in text: the text is empty"),
        (["say", "Hello.", "--packet-frames", "1,x"], "such as 1,2,4"),
        (["say", "Hello.", "--max-frames", "-1"], "--max-frames"),
        (["say", "Hello.", "--play"], "legato-tts[play]"),
        (["say", "Hello.", "--nonsense"], "--nonsense"),
        (["shout"], "shout"),
    ],
)
def test_refusals_come_before_any_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capfd: Capture, arguments: list[str], told: str
) -> None:
    def never(_choice: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(say_module, "load_chosen", never)
    monkeypatch.setitem(__import__("sys").modules, "sounddevice", None)
    assert main(arguments) == EXIT_REFUSED
    captured = capfd.readouterr()
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_samples_are_not_poured_into_a_terminal(
    model: FakeLegato, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["say", "Hello.", "-o", "-"]) == EXIT_REFUSED
    assert "standard output is a terminal" in capfd.readouterr().err
    assert not model.texts
