"""The Python API on tiny random checkpoints: streamed and whole audio agree, clones are keyed by their content,
sample rates agree, and invalid requests are refused before any computation.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from legato.api import CloneReference, Legato, load
from legato.errors import (
    EngineClosedError,
    GenerationError,
    InputError,
    SamplingError,
    UnknownLanguageError,
    UnknownVoiceError,
    UnsupportedError,
)
from legato.types import FinishReason, TextLayout
from tests.conftest import TinyCheckpoint
from tests.engine.harness import Harness

TEXT = "Some words to speak."
TOLERANCE = 2e-5
"""Tolerance for samples from different codec windows, part of full scale."""

Samples = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def speaker(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2) as tts:
        yield tts


@pytest.fixture(scope="module")
def exact(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=3, deterministic=True) as tts:
        yield tts


@pytest.fixture(scope="module")
def cloner(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-base")) as tts:
        yield tts


def recording(pitch_hz: float, seconds: float = 1.2) -> Samples:
    """A reference recording at 24 kHz: a tone with a smooth envelope."""
    t = np.arange(round(24_000 * seconds)) / 24_000
    return (0.3 * np.sin(2 * np.pi * pitch_hz * t) * np.sin(np.pi * t / seconds)).astype(np.float32)


# --- streamed and whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packet_frames", [(1,), (4,), (1, 2, 4)])
def test_packets_join_to_the_whole_audio(speaker: Legato, packet_frames: tuple[int, ...]) -> None:
    whole = speaker.say(TEXT, seed=3, max_frames=7)
    packets = list(speaker.stream(TEXT, seed=3, max_frames=7, packet_frames=packet_frames))
    joined = np.concatenate([packet.float32() for packet in packets])
    assert [packet.first_sample for packet in packets] == [
        sum(earlier.sample_count for earlier in packets[:n]) for n in range(len(packets))
    ]
    assert [packet.last for packet in packets] == [False] * (len(packets) - 1) + [True]
    assert joined.shape == whole.samples.shape
    assert np.abs(joined - whole.samples).max() <= TOLERANCE


def test_seed_determines_the_audio(speaker: Legato) -> None:
    first, again, other = (speaker.say(TEXT, seed=seed, max_frames=4).samples for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_text_in_pieces_gives_the_same_audio(exact: Legato) -> None:
    whole = exact.say(TEXT, max_frames=6, layout=TextLayout.STREAMING)
    pieces = exact.say(iter(TEXT), max_frames=6)
    assert np.array_equal(whole.samples, pieces.samples)
    assert not np.array_equal(
        whole.samples, exact.say("Other words.", max_frames=6, layout=TextLayout.STREAMING).samples
    )


def test_concurrent_streams_equal_solo_runs(speaker: Legato) -> None:
    solo = [speaker.say(TEXT, seed=seed, max_frames=5).samples for seed in (1, 2)]
    streams = [speaker.stream(TEXT, seed=seed, max_frames=5) for seed in (1, 2)]
    together = [np.concatenate([packet.float32() for packet in stream]) for stream in streams]
    assert all(np.abs(mine - theirs).max() <= TOLERANCE for mine, theirs in zip(solo, together, strict=True))


def test_deterministic_mode_is_bit_identical_when_co_batched(exact: Legato) -> None:
    texts = (TEXT, "A longer one, that takes its time.", "Short.")
    solo = [exact.say(text, seed=seed, max_frames=8).samples for seed, text in enumerate(texts)]
    streams = [exact.stream(text, seed=seed, max_frames=8) for seed, text in enumerate(texts)]
    together = [np.concatenate([packet.float32() for packet in stream]) for stream in streams]
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(solo, together, strict=True))


# --- rates -----------------------------------------------------------------------------------------------------------


def test_rates_and_lengths_agree(speaker: Legato) -> None:
    codec = speaker.model.config.codec
    speech = speaker.say(TEXT, max_frames=5)
    (packet, *_) = list(speaker.stream(TEXT, max_frames=5))
    assert speaker.sample_rate_hz == codec.sample_rate_hz == speech.sample_rate_hz == packet.sample_rate_hz == 24_000
    assert len(speech.samples) == speech.frames * codec.frame_samples
    assert speech.seconds == pytest.approx(speech.frames / 12.5)
    assert speech.finish_reason is FinishReason.MAX_FRAMES
    assert speech.frames == 5


# --- clones ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transcript", ["", "What the tone says."])
def test_clone_output_contains_no_reference_audio(cloner: Legato, transcript: str) -> None:
    """No audio of the reference is part of the output, streamed or whole, for any length of the reference."""
    for seconds in (1.2, 2.0):
        clone = CloneReference(recording(220.0, seconds), transcript)
        whole = cloner.say(TEXT, clone=clone, max_frames=3)
        packets = list(cloner.stream(TEXT, clone=clone, max_frames=3))
        assert whole.frames == sum(packet.frames for packet in packets) == 3
        assert packets[0].first_sample == 0
        assert len(whole.samples) == 3 * cloner.model.config.codec.frame_samples
        joined = np.concatenate([packet.float32() for packet in packets])
        assert np.abs(joined - whole.samples).max() <= TOLERANCE


def test_clones_are_keyed_by_content(cloner: Legato) -> None:
    low, high = (CloneReference(recording(pitch), "The same words.") for pitch in (150.0, 900.0))
    first, other, again = (cloner.say(TEXT, clone=clone, max_frames=3).samples for clone in (low, high, low))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    relabelled = CloneReference(low.audio, "Quite different words.")
    assert not np.array_equal(first, cloner.say(TEXT, clone=relabelled, max_frames=3).samples)


def test_silence_is_appended_to_the_reference_by_default(cloner: Legato) -> None:
    samples, transcript = recording(220.0), "It stops in the middle of a"
    usual = cloner.say(TEXT, clone=CloneReference(samples, transcript), max_frames=3).samples
    by_hand = np.concatenate([samples, np.zeros(12_000, dtype=np.float32)])
    same = cloner.say(TEXT, clone=CloneReference(by_hand, transcript, append_silence_s=0.0), max_frames=3).samples
    none = cloner.say(TEXT, clone=CloneReference(samples, transcript, append_silence_s=0.0), max_frames=3).samples
    assert np.array_equal(usual, same)
    assert not np.array_equal(usual, none)


def test_clone_without_transcript_adds_a_note(cloner: Legato) -> None:
    stream = cloner.stream(TEXT, clone=CloneReference(recording(220.0)), max_frames=1)
    assert any("speaker vector" in note for note in stream.notes)
    assert len(list(stream)) == 1


# --- errors and exit -----------------------------------------------------------------------------------------------


def test_invalid_requests_are_refused_at_once(speaker: Legato, cloner: Legato) -> None:
    names = [voice.name for voice in speaker.voices()]
    with pytest.raises(UnknownVoiceError, match=names[0]):
        speaker.stream(TEXT, voice="nobody")
    with pytest.raises(UnknownLanguageError, match="english"):
        speaker.stream(TEXT, language="klingon")
    with pytest.raises(UnsupportedError, match="Base"):
        speaker.stream(TEXT, clone=CloneReference(recording(220.0)))
    with pytest.raises(InputError, match="reference"):
        cloner.stream(TEXT)
    with pytest.raises(SamplingError, match="temperature"):
        speaker.stream(TEXT, temperature=-1.0)
    with pytest.raises(InputError, match="heat"):
        speaker.stream(TEXT, heat=1.0)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="seed"):
        speaker.stream(TEXT, seed=-1)
    with pytest.raises(InputError, match="max_frames"):
        speaker.stream(TEXT, max_frames=-1)
    assert speaker.say(TEXT, max_frames=1).frames == 1


def test_error_of_the_text_source_is_raised_to_the_caller(speaker: Legato) -> None:
    def broken() -> Iterator[str]:
        yield "Some words "
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        list(speaker.stream(broken(), max_frames=50))
    assert speaker.say(TEXT, max_frames=1).frames == 1


@pytest.mark.parametrize("item", [None, 7, b"bytes"])
def test_text_source_that_yields_no_string_fails_only_its_own_stream(exact: Legato, item: object) -> None:
    """The other stream, which speaks meanwhile, gives the same bits as when it runs alone."""
    solo = exact.say(TEXT, seed=3, max_frames=12).samples

    def pieces() -> Iterator[str]:
        yield "Some words "
        yield item  # type: ignore[misc]

    other = iter(exact.stream(TEXT, seed=3, max_frames=12))
    packets = [next(other)]
    with pytest.raises(InputError, match=f"text must be str, not {type(item).__name__}"):
        list(exact.stream(pieces(), max_frames=50))
    packets += other
    assert np.array_equal(np.concatenate([packet.float32() for packet in packets]), solo)


def test_command_that_raises_fails_only_its_own_stream() -> None:
    """A wrong value that gets past the handle reaches the engine thread as a command; the other stream is unharmed."""
    h = Harness(rows_per_call=1)
    _, solo = h.submit(TEXT, seed=1, max_frames=9)
    h.run()
    broken_id, broken = h.submit("Some words ", seed=2, max_frames=9, ended=False)
    _, other = h.submit(TEXT, seed=1, max_frames=9)
    h.append(broken_id, None)  # type: ignore[arg-type]
    h.run()
    assert [type(error) for error in broken.errors] == [GenerationError]
    assert "NoneType" in str(broken.errors[0])
    assert np.array_equal(other.samples, solo.samples)
    h.assert_all_slots_free()


def test_ending_the_iteration_early_frees_the_slot(speaker: Legato) -> None:
    for _ in range(4):  # twice the number of slots
        for _packet in speaker.stream(TEXT, max_frames=200):
            break
    assert speaker.say(TEXT, max_frames=1).frames == 1


def test_closed_engine_raises(tiny_checkpoint: TinyCheckpoint) -> None:
    tts = load(tiny_checkpoint("tiny-custom-voice"))
    tts.close()
    with pytest.raises(EngineClosedError):
        tts.say(TEXT)


def test_unknown_dtype_is_refused(tiny_checkpoint: TinyCheckpoint) -> None:
    with pytest.raises(InputError, match=r"float16 is not supported.*bfloat16"):
        load(tiny_checkpoint("tiny-custom-voice"), dtype="float16")


ENDS_EARLY = """
import sys
from legato.api import load
text = "The quick brown fox jumps over the lazy dog. " * 20
packets = iter(load(sys.argv[1]).stream(text, voice="vivian", max_frames=300))
next(packets)
print("the end")
"""


def test_program_that_exits_while_streaming_exits_cleanly(tiny_checkpoint: TinyCheckpoint) -> None:
    """Nothing is closed: the exit handler of the engine must stop its thread, or the process aborts."""
    command = [sys.executable, "-c", ENDS_EARLY, str(tiny_checkpoint("tiny-custom-voice"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
