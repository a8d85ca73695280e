"""Cache of cloned voices: encodes reference audio into a `ClonedVoice`, once for each recording.

The cache lives as long as the engine and has a size limit in bytes. The key is a digest of samples and transcript, not
a name, so callers that use the same name for different recordings cannot get each other's voice.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch

from legato.errors import ReferenceAudioError, UnsupportedError
from legato.kernels.threads import release_worker_threads
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.encoder import CodecEncoder
from legato.models.speaker import SpeakerEncoder, speaker_vector
from legato.models.voice import ClonedVoice
from legato.types import TextToken


class VoiceCache:
    """Encodes reference recordings and caches the most recently used voices. Thread-safe."""

    def __init__(
        self,
        decoder: CodecDecoder,
        encoder: CodecEncoder | None,
        speaker: SpeakerEncoder | None,
        *,
        limit_bytes: int,
    ) -> None:
        self._decoder = decoder
        self._encoder = encoder
        self._speaker = speaker
        self._limit_bytes = limit_bytes
        self._voices: OrderedDict[str, ClonedVoice] = OrderedDict()
        self._key_locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.num_encoded = 0

    @property
    def cached_bytes(self) -> int:
        """Size of all cached voices."""
        with self._lock:
            return sum(map(_size_bytes, self._voices.values()))

    def get_or_encode(self, samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> ClonedVoice:
        """The voice of a reference: `samples` float32 [N] mono at the codec's rate, and the tokens of its transcript.

        Computed in the caller's thread. Concurrent calls for the same voice wait for one computation; calls for other
        voices do not. Without a transcript the voice has only a speaker vector. `UnsupportedError` if the checkpoint
        cannot clone, `ReferenceAudioError` if the computation fails.
        """
        key = voice_key(samples, transcript)
        with self._lock:
            if key in self._voices:
                self._voices.move_to_end(key)
                return self._voices[key]
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        try:
            with key_lock:
                with self._lock:
                    cached = self._voices.get(key)
                voice = cached if cached is not None else self._encode(key, samples, transcript)
                with self._lock:
                    self._keep(voice)
        finally:
            with self._lock:
                self._key_locks.pop(key, None)
        return voice

    def _keep(self, voice: ClonedVoice) -> None:
        """Cache a voice and evict the least recently used ones. A voice larger than the limit is not cached."""
        self._voices[voice.key] = voice
        self._voices.move_to_end(voice.key)
        while self._voices and sum(map(_size_bytes, self._voices.values())) > self._limit_bytes:
            self._voices.popitem(last=False)

    def _encode(self, key: str, samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> ClonedVoice:
        if self._speaker is None or self._encoder is None:
            raise UnsupportedError(
                "this checkpoint cannot clone a voice: only Base checkpoints have a speaker encoder", field="clone"
            )
        self.num_encoded += 1
        try:
            with torch.inference_mode():
                recording = torch.from_numpy(samples).to(self._speaker.fc.weight.device)
                vector = speaker_vector(self._speaker, recording)
                if not transcript:
                    return ClonedVoice(key, vector, torch.empty(0, 0, dtype=torch.long), (), None)
                codes = self._encoder.encode(recording[None])[0][0]
                _, history = self._decoder.forward(self._decoder.initial_history(1), codes[None])
        except (RuntimeError, MemoryError) as error:  # torch reports out of memory as either
            raise ReferenceAudioError(f"the reference could not be encoded: {error}", field="clone") from error
        finally:
            release_worker_threads()
        return ClonedVoice(key, vector, codes, transcript, history.clone())


def voice_key(samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> str:
    """Cache key of a voice: digest of its samples and transcript."""
    digest = hashlib.blake2b(np.ascontiguousarray(samples, dtype="<f4").tobytes(), digest_size=16)
    digest.update(repr(transcript).encode())
    return digest.hexdigest()


def _size_bytes(voice: ClonedVoice) -> int:
    tensors = [voice.speaker_vector, voice.codes]
    if voice.history is not None:
        tensors.extend(voice.history.tensors())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
