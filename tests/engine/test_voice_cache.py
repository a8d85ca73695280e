"""Cloned voices: cached by content, computed once, limited in bytes, never those of another caller."""

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

from legato.backends.select import build_backend
from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.frontend import FrontEnd, create_front_end
from legato.engine.request import Reference, SpeechRequest, resolve_request
from legato.engine.voice_cache import VoiceCache
from legato.errors import ReferenceAudioError, UnsupportedError
from legato.models.voice import ClonedVoice
from legato.types import TextToken
from legato.weights.loading import LoadedModel, load_model
from tests.conftest import TinyCheckpoint

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Base:
    """A tiny Base checkpoint, loaded once."""

    model: LoadedModel
    front_end: FrontEnd

    def store(self, limit_bytes: int = 2**28) -> VoiceCache:
        return VoiceCache(self.model.decoder, self.model.encoder, self.model.speaker_encoder, limit_bytes=limit_bytes)


@pytest.fixture(scope="module")
def base(tiny_checkpoint: TinyCheckpoint) -> Base:
    model = load_model(tiny_checkpoint("tiny-base"))
    return Base(model, create_front_end(model))


def recording(number: int) -> Samples:
    """One second of noise, different for each number."""
    noise = np.random.default_rng(number).standard_normal(24000) * 0.1
    return noise.astype(np.float32)


WORDS: tuple[TextToken, ...] = ((11,), (12,), (13,))


class CountingStore(VoiceCache):
    """A store that counts its encodings and slows them down."""

    started = 0

    def _encode(self, key: str, samples: Samples, transcript: tuple[TextToken, ...]) -> ClonedVoice:
        self.started += 1
        time.sleep(0.05)
        return super()._encode(key, samples, transcript)


def test_voices_are_cached_by_content(base: Base) -> None:
    store = base.store()
    first = store.get_or_encode(recording(1), WORDS)
    assert store.get_or_encode(recording(1).copy(), WORDS) is first
    assert store.num_encoded == 1
    assert store.get_or_encode(recording(1), ()).key != first.key
    assert store.get_or_encode(recording(2), WORDS).key != first.key
    assert store.num_encoded == 3


def test_voice_cache_evicts_least_recently_used(base: Base) -> None:
    whole = base.store()
    whole.get_or_encode(recording(1), WORDS)
    store = base.store(limit_bytes=2 * whole.cached_bytes + 100)
    first = store.get_or_encode(recording(1), WORDS)
    store.get_or_encode(recording(2), WORDS)
    store.get_or_encode(recording(1), WORDS)
    store.get_or_encode(recording(3), WORDS)  # evicts 2
    assert store.cached_bytes <= 2 * whole.cached_bytes + 100
    assert store.get_or_encode(recording(1), WORDS) is first
    assert store.num_encoded == 3
    store.get_or_encode(recording(2), WORDS)
    assert store.num_encoded == 4


def test_concurrent_requests_compute_a_voice_once(base: Base) -> None:
    store = CountingStore(base.model.decoder, base.model.encoder, base.model.speaker_encoder, limit_bytes=2**28)
    got: list[ClonedVoice] = []
    threads = [threading.Thread(target=lambda: got.append(store.get_or_encode(recording(1), WORDS))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 6
    assert store.started == 1
    assert all(voice is got[0] for voice in got)


def test_encoding_one_voice_does_not_block_cached_ones(base: Base) -> None:
    hold, entered = threading.Event(), threading.Event()

    class Held(VoiceCache):
        """Encodes recording 2 only after `hold` is set."""

        def _encode(self, key: str, samples: Samples, transcript: tuple[TextToken, ...]) -> ClonedVoice:
            if np.array_equal(samples, recording(2)):
                entered.set()
                assert hold.wait(30)
            return super()._encode(key, samples, transcript)

    store = Held(base.model.decoder, base.model.encoder, base.model.speaker_encoder, limit_bytes=2**28)
    known = store.get_or_encode(recording(1), WORDS)
    thread = threading.Thread(target=lambda: store.get_or_encode(recording(2), WORDS))
    thread.start()
    assert entered.wait(30)
    assert store.get_or_encode(recording(1), WORDS) is known  # would hang if the store were locked while it encodes
    hold.set()
    thread.join(30)


def test_failed_encoding_can_be_retried(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    store = base.store()
    with monkeypatch.context() as patch:

        def no_memory(*_: object) -> None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        patch.setattr("legato.engine.voice_cache.speaker_vector", no_memory)
        with pytest.raises(ReferenceAudioError, match="allocate memory"):
            store.get_or_encode(recording(1), WORDS)
    assert store.get_or_encode(recording(1), WORDS).frames > 0


def test_cloning_without_encoders_names_base_checkpoints(base: Base) -> None:
    store = VoiceCache(base.model.decoder, None, None, limit_bytes=2**20)
    with pytest.raises(UnsupportedError, match="Base"):
        store.get_or_encode(recording(1), ())


def test_reference_is_encoded_on_the_device_of_the_model(tiny_checkpoint: TinyCheckpoint) -> None:
    """Uses torch's meta device, which computes shapes and refuses CPU tensors."""
    elsewhere = load_model(tiny_checkpoint("tiny-base"))
    assert elsewhere.encoder is not None
    assert elsewhere.speaker_encoder is not None
    decoder, encoder = deepcopy(elsewhere.decoder), deepcopy(elsewhere.encoder)
    speaker = deepcopy(elsewhere.speaker_encoder)
    for module in (decoder, encoder, speaker):
        module.to("meta")
    store = VoiceCache(decoder, encoder, speaker, limit_bytes=2**28)
    voice = store.get_or_encode(recording(1), WORDS)
    assert voice.history is not None
    tensors = [voice.codes, voice.speaker_vector, *voice.history.tensors()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    with pytest.raises(RuntimeError, match="meta"):
        encoder.encode(torch.from_numpy(recording(1))[None])  # negative control: samples on the wrong device


# --- parallel clones -------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(base: Base) -> Iterator[Engine]:
    made = Engine(
        build_backend(base.model),
        base.front_end,
        EngineConfig(max_num_seqs=5, kv_slots=6, max_seq_len=256, deterministic=True),
        poison=True,
    )
    yield made
    made.close()


def test_parallel_clones_equal_their_solo_runs(base: Base, engine: Engine) -> None:
    store = base.store()
    asked = [SpeechRequest(reference=Reference(recording(n), "Some words."), seed=n, max_frames=4) for n in range(4)]
    asked.append(SpeechRequest(reference=Reference(recording(9)), seed=9, max_frames=4))  # no transcript
    requests = [
        resolve_request(each, base.model.config, base.front_end, store, whole_text=True).request for each in asked
    ]

    def samples(together: bool) -> list[bytes]:
        received: list[bytes] = []
        handles = []
        for request in requests:
            handle = engine.submit(request)
            handle.append_text("One sentence for all.")
            handle.end_text()
            handles.append(handle)
            if not together:
                received.append(b"".join(packet.float32_le for packet in handle))
        return received or [b"".join(packet.float32_le for packet in handle) for handle in handles]

    alone, side_by_side = samples(together=False), samples(together=True)
    assert side_by_side == alone
    assert len(set(alone)) == len(alone)  # negative control: the five voices differ
