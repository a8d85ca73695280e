"""`legato say` with a fake model: the request it makes, its outputs, its messages, and how it ends."""

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
from legato.cli.main import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, main
from legato.errors import GenerationError, UnknownVoiceError
from legato.types import FinishReason, TextLayout
from tests.audio.packets import RATE_HZ, speechlike, split_packets
from tests.cli.fakes import FakeLegato

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLegato:
    fake = FakeLegato()
    monkeypatch.setattr(say_module, "load_engine", lambda *_options: fake)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Replaces standard input with a pipe; the value is the write end."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "r") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        yield writer


def test_default_writes_out_wav_and_prints_a_summary(model: FakeLegato, capfd: Capture) -> None:
    assert main(["say", "Hello", "there."]) == EXIT_OK
    assert model.texts == [["Hello there."]]
    info = soundfile.info("out.wav")
    assert (info.frames, info.samplerate, info.channels) == (round(0.8 * RATE_HZ), RATE_HZ, 1)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert re.search(r"0\.8 s of audio in \d\.\d\d s \(RTF \d\.\d\d\), first audio after \d+ ms", captured.err)
    assert "finished" not in captured.err
    assert "warning" not in captured.err
    assert "wrote out.wav" in captured.err
    assert model.closed


@pytest.mark.parametrize("arguments", [["--verbose", "say"], ["say", "-v"], ["say", "--debug"]])
def test_verbose_adds_finish_reason_limit_and_stages(model: FakeLegato, capfd: Capture, arguments: list[str]) -> None:
    assert main([*arguments, "Hello there."]) == EXIT_OK
    captured = capfd.readouterr()
    assert "finished: eos (the model emitted end of speech) after 10 frames; limit: 77 frames" in captured.err
    assert "input wait 250 ms, queue 0 ms, prefill 250 ms" in captured.err
    assert model.texts == [["Hello there."]]


def test_stdout_carries_only_raw_samples(model: FakeLegato, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """CASES R70."""
    assert main(["say", "Hello.", "-o", "-"]) == EXIT_OK
    out = capfdbinary.readouterr().out
    assert out == b"".join(packet.int16().tobytes() for packet in split_packets(speechlike(0.8)))
    assert not list(Path().iterdir())
    assert model.closed


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "opus", "ogg", "pcm"])
def test_suffix_selects_the_format(model: FakeLegato, suffix: str) -> None:
    assert main(["say", "Hello.", "-o", f"x.{suffix}"]) == EXIT_OK
    data = Path(f"x.{suffix}").read_bytes()
    if suffix == "pcm":
        assert len(data) == 2 * round(0.8 * RATE_HZ)
    else:
        assert len(soundfile.read(io.BytesIO(data))[0]) == round(0.8 * RATE_HZ)
    assert model.closed


def test_every_option_is_passed_to_the_model(model: FakeLegato) -> None:
    speech = ["--voice", "Ryan", "--language", "English", "--instruct", "Slowly.", "--seed", "7", "--max-frames", "9"]
    layout = ["--packet-frames", "1,3", "--layout", "whole"]
    coarse = ["--temperature", "0.5", "--top-k", "9", "--top-p", "0.8", "--repetition-penalty", "1.1"]
    fine = ["--predictor-temperature", "0.4", "--predictor-top-k", "0", "--predictor-top-p", "1"]
    assert main(["say", "Hello.", *speech, *layout, *coarse, *fine]) == EXIT_OK
    assert model.requests == [
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


def test_sampling_defaults_come_from_the_checkpoint(model: FakeLegato) -> None:
    assert main(["say", "Hello."]) == EXIT_OK
    assert set(model.requests[0]) == {
        *("voice", "language", "instruct", "clone", "seed", "packet_frames", "max_frames", "layout")
    }
    assert model.requests[0]["packet_frames"] is None
    assert model.requests[0]["layout"] is None


def test_greedy_sets_both_temperatures_to_0(model: FakeLegato) -> None:
    assert main(["say", "Hello.", "--greedy"]) == EXIT_OK
    assert (model.requests[0]["temperature"], model.requests[0]["predictor_temperature"]) == (0.0, 0.0)
    assert main(["say", "Hello.", "--greedy", "--temperature", "1"]) == EXIT_USAGE


def test_clone_passes_recording_and_transcript(model: FakeLegato) -> None:
    assert main(["say", "Hello.", "--clone", "me.wav", "--ref-text", "It is me."]) == EXIT_OK
    clone = model.requests[0]["clone"]
    assert (str(getattr(clone, "audio", "")), getattr(clone, "transcript", "")) == ("me.wav", "It is me.")
    assert main(["say", "Hello.", "--ref-text", "It is me."]) == EXIT_USAGE


def test_text_from_a_file(model: FakeLegato, capfd: Capture) -> None:
    Path("story.txt").write_bytes(b"\xef\xbb\xbfCaf\xc3\xa9.\n")
    assert main(["say", "-f", "story.txt"]) == EXIT_OK
    assert model.texts == [["Café.\n"]]
    Path("latin.txt").write_bytes(b"Caf\xe9.")
    assert main(["say", "-f", "latin.txt"]) == EXIT_USAGE
    assert "error in text: latin.txt is not UTF-8: byte 3 is 0xe9" in capfd.readouterr().err
    assert main(["say", "-f", "absent.txt"]) == EXIT_USAGE
    assert "legato: error in file: cannot read 'absent.txt': No such file or directory\n" in capfd.readouterr().err
    assert main(["say", "Hello.", "-f", "story.txt"]) == EXIT_USAGE


@pytest.mark.parametrize("arguments", [[], ["-"], ["-f", "-"]])
def test_text_from_a_pipe_is_streamed(model: FakeLegato, pipe: int, arguments: list[str]) -> None:
    """The model receives each piece before the next one is written, even if a character's bytes are split."""
    arrived = threading.Semaphore(0)
    received: list[str] = []
    original = model.stream

    def stream(text: Iterator[str], **request: object) -> object:
        def pieces() -> Iterator[str]:
            for piece in text:
                received.append(piece)
                arrived.release()
                yield piece

        return original(pieces(), **request)

    model.stream = stream  # type: ignore[assignment, method-assign]
    in_order: list[bool] = []

    def write() -> None:
        for data in (b"Hello ", b"caf\xc3", b"\xa9", b"."):
            os.write(pipe, data)
            in_order.append(arrived.acquire(timeout=10))
        os.close(pipe)

    writer = threading.Thread(target=write)
    writer.start()
    assert main(["say", *arguments]) == EXIT_OK
    writer.join()
    assert received == ["Hello ", "caf", "é", "."]
    assert in_order == [True] * 4


def test_redirected_file_is_read_whole(model: FakeLegato, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("story.txt").write_text("All of it is there.")
    with Path("story.txt").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["say"]) == EXIT_OK
    assert model.texts == [["All of it is there."]]
    assert isinstance(model.texts[0], list)


@pytest.mark.parametrize("reason", [FinishReason.BUDGET, FinishReason.SILENCE, FinishReason.REPEAT])
def test_runaway_generation_is_reported(model: FakeLegato, capfd: Capture, reason: FinishReason) -> None:
    model.reason = reason
    assert main(["say", "Hello."]) == EXIT_OK
    captured = capfd.readouterr().err
    assert "legato: warning: stopped early after 10 frames" in captured
    assert f"({reason.value})" in captured
    assert "another --seed" in captured


def test_reported_limit_is_the_one_in_force(model: FakeLegato, capfd: Capture) -> None:
    """CASES R25."""
    model.reason = FinishReason.MAX_FRAMES
    assert main(["say", "Hello.", "--max-frames", "10", "--verbose"]) == EXIT_OK
    captured = capfd.readouterr().err
    assert "after 10 frames; limit: 10 frames (--max-frames)" in captured
    assert "warning: stopped early after 10 frames: limit of 10 frames (--max-frames) reached" in captured


def test_notes_of_the_stream_are_printed(model: FakeLegato, capfd: Capture) -> None:
    model.notes = ("without --ref-text the clone is less like",)
    assert main(["say", "Hello."]) == EXIT_OK
    assert "legato: without --ref-text the clone is less like\n" in capfd.readouterr().err


def test_interrupt_cancels_and_leaves_a_playable_file(model: FakeLegato, capfd: Capture) -> None:
    def interrupt(index: int) -> None:
        if index == 2:
            raise KeyboardInterrupt

    model.before = interrupt
    assert main(["say", "Hello."]) == EXIT_INTERRUPTED
    captured = capfd.readouterr().err
    assert "legato: cancelled: 0.2 s of audio in" in captured
    assert "Traceback" not in captured
    assert model.streams[0].cancelled
    assert model.closed
    assert soundfile.info("out.wav").frames == 1920 + 3840


def test_error_before_the_first_packet_keeps_an_existing_file(model: FakeLegato, capfd: Capture) -> None:
    def fail(index: int) -> None:
        raise UnknownVoiceError(f"no voice at {index}; there are a, b", field="voice")

    model.before = fail
    Path("out.wav").write_bytes(b"older")
    assert main(["say", "Hello."]) == EXIT_USAGE
    assert capfd.readouterr().err.splitlines()[-1] == "legato: error in voice: no voice at 0; there are a, b"
    assert Path("out.wav").read_bytes() == b"older"


def test_error_during_generation_keeps_the_audio_so_far(model: FakeLegato) -> None:
    def fail(index: int) -> None:
        if index:
            raise GenerationError("broken")

    model.before = fail
    assert main(["say", "Hello."]) == EXIT_USAGE
    assert np.array_equal(soundfile.read("out.wav", dtype="int16")[0], split_packets(speechlike(0.8))[0].int16())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", "Hello.", "-o", "x.xyz"], "unknown audio file extension"),
        (["say", "Hello.", "-o", "no/such/x.wav"], "error in output: folder"),
        (["say", ""], "error in text: the text is empty"),
        (["say", "Hello.", "--packet-frames", "1,x"], "such as 1,2,4"),
        (["say", "Hello.", "--max-frames", "-1"], "--max-frames"),
        (["say", "Hello.", "--play"], 'pip install ".[play]"'),
        (["say", "Hello.", "--nonsense"], "--nonsense"),
        (["shout"], "shout"),
    ],
)
def test_invalid_arguments_are_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capfd: Capture, arguments: list[str], message: str
) -> None:
    def never(*_options: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(say_module, "load_engine", never)
    monkeypatch.setitem(__import__("sys").modules, "sounddevice", None)
    assert main(arguments) == EXIT_USAGE
    captured = capfd.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_raw_samples_are_not_written_to_a_terminal(
    model: FakeLegato, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["say", "Hello.", "-o", "-"]) == EXIT_USAGE
    assert "standard output is a terminal" in capfd.readouterr().err
    assert not model.texts
