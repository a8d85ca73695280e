"""The public names of `legato`, the old spellings that still work, and what `load`, `stream` and `say` accept."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import wave
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import legato
from legato import api, errors
from legato.api import CloneReference, Legato, load
from legato.audio.play import Player
from legato.config.engine import ENGINE_RENAMES, EngineConfig
from legato.engine.flow_control import BACKGROUND
from legato.errors import InputError, SamplingError, StateError, UnsupportedError
from legato.types import SAMPLING_FIELDS, FinishReason, SamplingOptions, SamplingParams
from tests.conftest import TinyCheckpoint
from tests.server.running import wait_for

TEXT = "Some words to speak."

PUBLIC = [
    "BadCodeError",
    "CheckpointError",
    "CloneReference",
    "ConfigError",
    "DownloadError",
    "EngineClosedError",
    "EngineConfig",
    "FinishReason",
    "GenerationError",
    "InputError",
    "Legato",
    "LegatoError",
    "NonFiniteError",
    "Packet",
    "QueueFullError",
    "ReferenceAudioError",
    "SamplingError",
    "SamplingParams",
    "Speech",
    "StateError",
    "Stream",
    "TensorError",
    "TextTooLongError",
    "UnknownLanguageError",
    "UnknownVoiceError",
    "UnspeakableTextError",
    "UnsupportedError",
    "Voice",
    "load",
]


@pytest.fixture(scope="module")
def tts(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, deterministic=True) as tts:
        yield tts


@pytest.fixture(scope="module")
def cloner(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-base")) as tts:
        yield tts


def tone() -> npt.NDArray[np.float32]:
    times = np.arange(28_800) / 24_000
    return (0.3 * np.sin(2 * np.pi * 220 * times)).astype(np.float32)


def wav_samples(data: bytes) -> npt.NDArray[np.int16]:
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")


# --- names -----------------------------------------------------------------------------------------------------------


def test_public_names_are_exactly_these() -> None:
    assert sorted(legato.__all__) == PUBLIC
    assert all(getattr(legato, name) is not None for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(legato))


def test_every_error_is_exported() -> None:
    known = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert {name for name in known if name.endswith("Error")} == {name for name in PUBLIC if name.endswith("Error")}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'speak'"):
        _ = legato.speak  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'speak'"):
        _ = api.speak  # type: ignore[attr-defined]


def test_voice_info_is_a_deprecated_alias() -> None:
    for module in (legato, api):
        with pytest.warns(DeprecationWarning, match="use Voice"):
            assert module.VoiceInfo is legato.Voice


# --- arguments of load -----------------------------------------------------------------------------------------------


def test_load_takes_an_engine_config(tiny_checkpoint: TinyCheckpoint) -> None:
    config = EngineConfig(max_num_seqs=3, max_seq_len=128, max_queue=5, deterministic=True)
    with load(tiny_checkpoint("tiny-custom-voice"), config=config) as tts:
        assert tts.config is config
    assert config.kv_slots == 4
    with pytest.raises(InputError, match="max_num_seqs cannot be combined with config"):
        load(tiny_checkpoint("tiny-custom-voice"), config=config, max_num_seqs=2)


def test_old_names_of_load_warn_and_work(tiny_checkpoint: TinyCheckpoint) -> None:
    with (
        pytest.warns(DeprecationWarning, match="is deprecated") as caught,
        load(tiny_checkpoint("tiny-custom-voice"), slots=2, positions=64, queue=3, graphs=False) as tts,  # type: ignore[call-arg]
    ):
        assert tts.config == EngineConfig(max_num_seqs=2, max_seq_len=64, max_queue=3, cuda_graphs=False)
    assert [str(each.message) for each in caught] == [
        "slots is deprecated: use max_num_seqs",
        "positions is deprecated: use max_seq_len",
        "queue is deprecated: use max_queue",
        "graphs is deprecated: use cuda_graphs",
    ]
    assert {each.filename for each in caught} == {__file__}


def test_old_and_new_name_together_are_refused(tiny_checkpoint: TinyCheckpoint) -> None:
    with pytest.raises(InputError, match="slots is the old name of max_num_seqs"):
        load(tiny_checkpoint("tiny-custom-voice"), slots=2, max_num_seqs=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(("old", "new"), ENGINE_RENAMES.items())
def test_old_fields_of_engine_config_warn_and_work(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}"):
        assert EngineConfig(**{old: 1}) == EngineConfig(**{new: 1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pass only"):
        EngineConfig(**{old: 1, new: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "mps", ""])
def test_unknown_device_names_the_choices(tiny_checkpoint: TinyCheckpoint, device: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"unknown device {device!r}: use cpu, cuda or cuda:N")):
        load(tiny_checkpoint("tiny-custom-voice"), device=device)


def test_old_name_of_flow_control_warns_and_works(tts: Legato) -> None:
    with pytest.warns(DeprecationWarning, match="demand is deprecated: use flow_control"):
        assert tts.stream(TEXT, max_frames=1, demand=BACKGROUND).speech().frames == 1  # type: ignore[call-arg]


# --- sampling --------------------------------------------------------------------------------------------------------


def test_sampling_fields_have_one_definition() -> None:
    names = [each.name for each in fields(SamplingParams)]
    assert list(SAMPLING_FIELDS) == names == list(SamplingOptions.__annotations__)


def test_sampling_params_and_options_give_the_same(tts: Legato) -> None:
    greedy = replace(tts.default_sampling(), temperature=0.0, predictor_temperature=0.0)
    whole = tts.say(TEXT, max_frames=5, sampling=greedy).samples
    options = tts.say(TEXT, max_frames=5, temperature=0.0, predictor_temperature=0.0).samples
    mixed = tts.say(TEXT, max_frames=5, sampling=replace(greedy, temperature=0.9), temperature=0.0).samples
    assert np.array_equal(whole, options)
    assert np.array_equal(whole, mixed)
    assert not np.array_equal(whole, tts.say(TEXT, max_frames=5).samples)
    with pytest.raises(SamplingError, match="temperature"):
        replace(greedy, temperature=-1.0)


# --- text ------------------------------------------------------------------------------------------------------------


async def written(*pieces: object) -> AsyncIterator[str]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece  # type: ignore[misc]


def test_async_text_is_the_text(tts: Legato) -> None:
    pieces = ("Some ", "words to", " speak.")
    plain = tts.say(iter(pieces), max_frames=6).samples
    assert np.array_equal(tts.say(written(*pieces), max_frames=6).samples, plain)

    async def on_the_loop() -> npt.NDArray[np.float32]:
        return np.concatenate([packet.float32() async for packet in tts.stream(written(*pieces), max_frames=6)])

    assert np.array_equal(asyncio.run(on_the_loop()), plain)


def test_errors_of_async_text_are_raised_where_packets_are_read(tts: Legato) -> None:
    async def read(*pieces: object) -> None:
        async for _ in tts.stream(written(*pieces), max_frames=50):
            pass

    with pytest.raises(InputError, match="text must be str, not NoneType"):
        asyncio.run(read("Some ", None))
    with pytest.raises(InputError, match="text must be str, not int"):
        tts.say(written("Some ", 5), max_frames=50)


def test_async_source_stops_with_its_stream(tts: Legato) -> None:
    closed: list[bool] = []

    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                await asyncio.sleep(0.001)
                yield "word "
        finally:
            closed.append(True)

    async def read_one() -> None:
        stream = tts.stream(endless(), max_frames=200)
        async for _ in stream:
            break
        stream.close()
        while not closed:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(read_one(), 60))
    assert closed == [True]


def test_say_refuses_async_text_on_a_running_loop(tts: Legato) -> None:
    async def block() -> None:
        tts.say(written("Some words."))

    with pytest.raises(InputError, match="block the event loop"):
        asyncio.run(block())


@pytest.mark.parametrize("text", [None, 5, b"bytes", bytearray(b"bytes")])
def test_text_of_a_wrong_type_is_refused(tts: Legato, text: object) -> None:
    with pytest.raises(InputError, match=f"text must be str or an iterable of str, not {type(text).__name__}"):
        tts.stream(text)  # type: ignore[arg-type]
    wait_for(lambda: tts.stats().streams_open == 0)  # streams of earlier tests may still be ending


# --- clones ----------------------------------------------------------------------------------------------------------


def test_a_recording_may_be_given_in_every_form(cloner: Legato, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes((tone() * 32767).astype("<i2").tobytes())
    forms = (path, str(path), path.read_bytes(), CloneReference(path))
    first, *others = [cloner.say(TEXT, clone=form, ref_text="A tone.", max_frames=2).samples for form in forms]
    assert all(np.array_equal(first, other) for other in others)
    array = cloner.say(TEXT, clone=tone(), ref_text="A tone.", max_frames=2).samples
    assert np.array_equal(array, cloner.say(TEXT, clone=CloneReference(tone(), "A tone."), max_frames=2).samples)


def test_a_transcript_needs_one_recording(cloner: Legato) -> None:
    with pytest.raises(InputError, match="ref_text is the transcript of clone"):
        cloner.stream(TEXT, ref_text="A tone.")
    with pytest.raises(InputError, match="already has a transcript"):
        cloner.stream(TEXT, clone=CloneReference(tone(), "A tone."), ref_text="A tone.")


# --- speech and stream -----------------------------------------------------------------------------------------------


def test_saved_file_holds_the_samples(tts: Legato, tmp_path: Path) -> None:
    speech = tts.say(TEXT, seed=2, max_frames=5)
    speech.save(tmp_path / "whole.wav")
    reason = tts.stream(TEXT, seed=2, max_frames=5).save(str(tmp_path / "stream.wav"))
    whole, stream = (wav_samples((tmp_path / f"{name}.wav").read_bytes()) for name in ("whole", "stream"))
    assert np.array_equal(whole, np.clip(np.rint(speech.samples * 32768), -32768, 32767).astype("<i2"))
    assert np.abs(whole.astype(int) - stream).max() <= 1
    assert reason is speech.finish_reason is FinishReason.MAX_FRAMES
    speech.save(tmp_path / "whole.flac")
    assert (tmp_path / "whole.flac").read_bytes()[:4] == b"fLaC"


def test_unknown_suffix_is_refused_and_leaves_no_stream(tts: Legato, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="wav"):
        tts.say(TEXT, max_frames=1).save(tmp_path / "out.doc")
    with tts.stream(TEXT, max_frames=200) as stream, pytest.raises(UnsupportedError, match="wav"):
        stream.save(tmp_path / "out.doc")
    assert list(tmp_path.iterdir()) == []
    assert tts.say(TEXT, max_frames=1).frames == 1


def test_stream_that_fails_at_once_leaves_an_existing_file(tts: Legato, tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    path.write_bytes(b"old")

    def broken() -> Iterator[str]:
        raise OSError("connection lost")
        yield ""

    with pytest.raises(OSError, match="connection lost"):
        tts.stream(broken()).save(path)
    assert path.read_bytes() == b"old"


def test_speech_in_a_notebook_is_an_audio_player(tts: Legato) -> None:
    speech = tts.say(TEXT, max_frames=2)
    html = speech._repr_html_()
    found = re.fullmatch(r'<audio controls src="data:audio/wav;base64,([A-Za-z0-9+/=]+)"></audio>', html)
    assert found is not None
    assert len(wav_samples(base64.b64decode(found[1]))) == len(speech.samples)


class SilentDevice:
    """An audio device that plays nothing."""

    latency = 0.0

    def __init__(self, _callback: object) -> None:
        """The callback is never called."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def test_speech_and_stream_play(tts: Legato, monkeypatch: pytest.MonkeyPatch) -> None:
    written_samples: list[int] = []

    class Recorder(Player):
        def __init__(self, sample_rate_hz: int) -> None:
            super().__init__(SilentDevice, sample_rate_hz)

        def write(self, packet: legato.Packet) -> None:
            written_samples.append(packet.sample_count)

    monkeypatch.setattr("legato.speech.open_player", Recorder)
    tts.say(TEXT, max_frames=3).play()
    assert written_samples == [3 * 1920]
    assert tts.stream(TEXT, max_frames=3).play() is FinishReason.MAX_FRAMES
    assert written_samples[1:] == [1920, 2 * 1920]


def test_stream_is_closed_by_its_block(tts: Legato) -> None:
    for _ in range(4):  # twice the number of slots
        with tts.stream(TEXT, max_frames=200) as stream:
            assert next(iter(stream)).frames == 1
    assert tts.say(TEXT, max_frames=1).frames == 1


def test_stream_is_read_once_and_fed_once(tts: Legato) -> None:
    stream = tts.stream(TEXT, max_frames=1)
    assert stream.speech().frames == 1
    with pytest.raises(StateError, match="already been read"):
        stream.speech()
    with pytest.raises(StateError, match="already been read"):
        stream.save("unused.wav")
    with pytest.raises(StateError, match="already has its text"):
        stream.feed(TEXT)
