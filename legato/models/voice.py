"""`Voice`: what a cloned voice is, computed once from its reference and never changed.

Lives as long as somebody holds it; it is cached by content, never by a label. Knows no slot and no request.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from legato.flow import TextToken
from legato.models.codec.state import CodecHistory


@dataclass(frozen=True, slots=True)
class Voice:
    """A cloned voice. `key` is a digest of the reference audio and its transcript.

    `speaker_vector` [D]. In context (a transcript was given): `codes` [T, Q] of the reference, its transcript's
    tokens and the codec history after decoding the codes, one row. Without a transcript these are empty and the codec
    starts fresh. What the talker computes of it depends on language and layout, too: see `engine/prefixes.py`.
    """

    key: str
    speaker_vector: Tensor
    codes: Tensor
    reference_text: tuple[TextToken, ...]
    histories: tuple[CodecHistory, ...]

    @property
    def in_context(self) -> bool:
        """True when the reference's own codes are part of the prompt."""
        return bool(self.histories)

    @property
    def frames(self) -> int:
        """Frames of reference codes in the prompt."""
        return int(self.codes.shape[0])
