"""`ClonedVoice`: the model inputs of a cloned voice, computed once from its reference audio. Immutable.

Voices are cached by a digest of their content, not by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from legato.models.codec.state import CodecHistory
from legato.types import TextToken


@dataclass(frozen=True, slots=True)
class ClonedVoice:
    """A cloned voice. `key` is a digest of the reference audio and its transcript.

    `speaker_vector` [D]. With a transcript: `codes` [T, Q] of the reference, the tokens of the transcript and the codec
    history after the codes, one row. Without a transcript, `codes` and `reference_text` are empty, `history` is None,
    and the codec starts from the initial history. Talker prefixes of voices are cached in `engine/kv_cache.py`.
    """

    key: str
    speaker_vector: Tensor
    codes: Tensor
    reference_text: tuple[TextToken, ...]
    history: CodecHistory | None

    @property
    def in_context(self) -> bool:
        """True if the prompt contains the codes of the reference."""
        return self.history is not None

    @property
    def frames(self) -> int:
        """Frames of reference codes in the prompt."""
        return int(self.codes.shape[0])
