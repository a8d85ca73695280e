"""Reference audio -> immutable `Voice`, computed once and cached by content with a limit in bytes.

Owns the cache for the life of the engine. The key is a digest of the samples and the transcript, never a label, so two
callers who use one name for two recordings cannot meet. Knows no stream and no slot.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch

from legato.errors import ReferenceAudioError, UnsupportedError
from legato.flow import TextToken
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.encoder import CodecEncoder
from legato.models.native.team import let_team_go
from legato.models.speaker import SpeakerEncoder, speaker_vector
from legato.models.voice import Voice


class VoiceStore:
    """Encodes references and keeps the voices most recently used."""

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
        self._voices: OrderedDict[str, Voice] = OrderedDict()
        self._encoding: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.encoded = 0

    @property
    def kept_bytes(self) -> int:
        """What the cached voices take."""
        with self._lock:
            return sum(map(_bytes, self._voices.values()))

    def voice(self, samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> Voice:
        """The voice of a reference: `samples` float32 [N] mono at the codec's rate, and its transcript's tokens.

        Computed in the caller's thread, which alone waits for it; others who want the same voice meanwhile wait for the
        one computation. Without a transcript the voice is the speaker vector alone. `UnsupportedError` where the
        checkpoint cannot clone, `ReferenceAudioError` where the computation fails.
        """
        key = voice_key(samples, transcript)
        with self._lock:
            if key in self._voices:
                self._voices.move_to_end(key)
                return self._voices[key]
            encoding = self._encoding.setdefault(key, threading.Lock())
        try:
            with encoding:
                with self._lock:
                    known = [self._voices[key]] if key in self._voices else []
                voice = known[0] if known else self._encode(key, samples, transcript)
                with self._lock:
                    self._keep(voice)
        finally:
            with self._lock:
                self._encoding.pop(key, None)
        return voice

    def _keep(self, voice: Voice) -> None:
        """Into the cache, and out with those that were used longest ago; one that is too large alone is not kept."""
        self._voices[voice.key] = voice
        self._voices.move_to_end(voice.key)
        while self._voices and sum(map(_bytes, self._voices.values())) > self._limit_bytes:
            self._voices.popitem(last=False)

    def _encode(self, key: str, samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> Voice:
        if self._speaker is None or self._encoder is None:
            raise UnsupportedError(
                "this checkpoint cannot clone a voice: only Base checkpoints have a speaker encoder", field="clone"
            )
        self.encoded += 1
        try:
            with torch.inference_mode():
                recording = torch.from_numpy(samples).to(self._speaker.fc.weight.device)
                vector = speaker_vector(self._speaker, recording)
                if not transcript:
                    return Voice(key, vector, torch.empty(0, 0, dtype=torch.long), (), ())
                codes = self._encoder.encode(recording[None])[0][0]
                _, history = self._decoder.forward(self._decoder.fresh(1), codes[None])
        except (RuntimeError, MemoryError) as error:  # torch says no memory in either way
            raise ReferenceAudioError(f"the reference could not be encoded: {error}", field="clone") from error
        finally:
            let_team_go()
        return Voice(key, vector, codes, transcript, (history.clone(),))


def voice_key(samples: npt.NDArray[np.float32], transcript: tuple[TextToken, ...]) -> str:
    """Digest of the content."""
    digest = hashlib.blake2b(np.ascontiguousarray(samples, dtype="<f4").tobytes(), digest_size=16)
    digest.update(repr(transcript).encode())
    return digest.hexdigest()


def _bytes(voice: Voice) -> int:
    tensors = [voice.speaker_vector, voice.codes]
    for history in voice.histories:
        tensors.extend(history.tensors())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
