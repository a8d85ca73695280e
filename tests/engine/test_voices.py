"""Voices are their recordings: cached by content, computed once, kept within a limit, and never another caller's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.frontend import FrontEnd, front_end_of
from legato.engine.resolve import Reference, SpeechRequest, resolve
from legato.engine.voices import VoiceStore
from legato.errors import ReferenceAudioError, UnsupportedError
from legato.flow import TextToken
from legato.models.load import LoadedModel, load_model
from legato.models.voice import Voice
from tests.conftest import TinyCheckpoint

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Base:
    """A tiny Base checkpoint, loaded once."""

    model: LoadedModel
    front_end: FrontEnd

    def store(self, limit_bytes: int = 2**28) -> VoiceStore:
        return VoiceStore(self.model.decoder, self.model.encoder, self.model.speaker_encoder, limit_bytes=limit_bytes)


@pytest.fixture(scope="module")
def base(tiny_checkpoint: TinyCheckpoint) -> Base:
    model = load_model(tiny_checkpoint("tiny-base"))
    return Base(model, front_end_of(model))


def recording(number: int) -> Samples:
    """A second of noise, another one for each number."""
    noise = np.random.default_rng(number).standard_normal(24000) * 0.1
    return noise.astype(np.float32)


WORDS: tuple[TextToken, ...] = ((11,), (12,), (13,))


class CountingStore(VoiceStore):
    """A store whose encoding is counted, slow, and may be held up."""

    started = 0

    def _encode(self, key: str, samples: Samples, transcript: tuple[TextToken, ...]) -> Voice:
        self.started += 1
        time.sleep(0.05)
        return super()._encode(key, samples, transcript)


def test_a_voice_is_its_content_whatever_it_is_called(base: Base) -> None:
    store = base.store()
    first = store.voice(recording(1), WORDS)
    assert store.voice(recording(1).copy(), WORDS) is first
    assert store.encoded == 1
    assert store.voice(recording(1), ()).key != first.key
    assert store.voice(recording(2), WORDS).key != first.key
    assert store.encoded == 3


def test_the_cache_has_a_limit_in_bytes_and_drops_what_was_used_longest_ago(base: Base) -> None:
    whole = base.store()
    whole.voice(recording(1), WORDS)
    store = base.store(limit_bytes=2 * whole.kept_bytes + 100)
    first = store.voice(recording(1), WORDS)
    store.voice(recording(2), WORDS)
    store.voice(recording(1), WORDS)
    store.voice(recording(3), WORDS)  # 2 goes
    assert store.kept_bytes <= 2 * whole.kept_bytes + 100
    assert store.voice(recording(1), WORDS) is first
    assert store.encoded == 3
    store.voice(recording(2), WORDS)
    assert store.encoded == 4


def test_many_threads_ask_for_one_voice_and_it_is_computed_once(base: Base) -> None:
    store = CountingStore(base.model.decoder, base.model.encoder, base.model.speaker_encoder, limit_bytes=2**28)
    got: list[Voice] = []
    threads = [threading.Thread(target=lambda: got.append(store.voice(recording(1), WORDS))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 6
    assert store.started == 1
    assert all(voice is got[0] for voice in got)


def test_a_voice_under_way_holds_up_nobody_who_wants_a_known_one(base: Base) -> None:
    hold, entered = threading.Event(), threading.Event()

    class Held(VoiceStore):
        """Encodes recording 2 only when told to."""

        def _encode(self, key: str, samples: Samples, transcript: tuple[TextToken, ...]) -> Voice:
            if np.array_equal(samples, recording(2)):
                entered.set()
                assert hold.wait(30)
            return super()._encode(key, samples, transcript)

    store = Held(base.model.decoder, base.model.encoder, base.model.speaker_encoder, limit_bytes=2**28)
    known = store.voice(recording(1), WORDS)
    thread = threading.Thread(target=lambda: store.voice(recording(2), WORDS))
    thread.start()
    assert entered.wait(30)
    assert store.voice(recording(1), WORDS) is known  # would hang if the store were locked while it encodes
    hold.set()
    thread.join(30)


def test_a_reference_that_breaks_the_encoder_fails_alone_and_may_be_tried_again(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = base.store()
    with monkeypatch.context() as patch:

        def no_memory(*_: object) -> None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        patch.setattr("legato.engine.voices.speaker_vector", no_memory)
        with pytest.raises(ReferenceAudioError, match="allocate memory"):
            store.voice(recording(1), WORDS)
    assert store.voice(recording(1), WORDS).frames > 0


def test_a_checkpoint_without_encoders_says_which_one_has_them(base: Base) -> None:
    store = VoiceStore(base.model.decoder, None, None, limit_bytes=2**20)
    with pytest.raises(UnsupportedError, match="Base"):
        store.voice(recording(1), ())


def test_a_reference_goes_to_the_device_that_its_model_is_on(tiny_checkpoint: TinyCheckpoint) -> None:
    """Where no accelerator is at hand, torch's meta device shows it: it computes shapes, and refuses CPU samples."""
    elsewhere = load_model(tiny_checkpoint("tiny-base"))
    assert elsewhere.encoder is not None
    assert elsewhere.speaker_encoder is not None
    decoder, encoder = deepcopy(elsewhere.decoder), deepcopy(elsewhere.encoder)
    speaker = deepcopy(elsewhere.speaker_encoder)
    for module in (decoder, encoder, speaker):
        module.to("meta")
    store = VoiceStore(decoder, encoder, speaker, limit_bytes=2**28)
    voice = store.voice(recording(1), WORDS)
    tensors = [voice.codes, voice.speaker_vector, *(each for history in voice.histories for each in history.tensors())]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    with pytest.raises(RuntimeError, match="meta"):
        encoder.encode(torch.from_numpy(recording(1))[None])  # the control: what the store must not do


# --- clones side by side ---------------------------------------------------------------------------------------------


@pytest.fixture
def engine(base: Base) -> Iterator[Engine]:
    made = Engine(
        base.model, base.front_end, EngineConfig(streams=5, kv_slots=6, positions=256, deterministic=True), poison=True
    )
    yield made
    made.close()


def test_clones_in_parallel_each_equal_their_solo_run(base: Base, engine: Engine) -> None:
    store = base.store()
    asked = [SpeechRequest(reference=Reference(recording(n), "Some words."), seed=n, max_frames=4) for n in range(4)]
    asked.append(SpeechRequest(reference=Reference(recording(9)), seed=9, max_frames=4))  # no transcript
    requests = [resolve(each, base.model.config, base.front_end, store, whole_text=True).request for each in asked]

    def samples(together: bool) -> list[bytes]:
        heard: list[bytes] = []
        handles = []
        for request in requests:
            handle = engine.submit(request)
            handle.append_text("One sentence for all.")
            handle.end_text()
            handles.append(handle)
            if not together:
                heard.append(b"".join(packet.float32_le for packet in handle))
        return heard or [b"".join(packet.float32_le for packet in handle) for handle in handles]

    alone, side_by_side = samples(together=False), samples(together=True)
    assert side_by_side == alone
    assert len(set(alone)) == len(alone)  # the control: five different voices are heard
