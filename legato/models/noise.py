"""Sampling noise: uniform numbers as a pure function of (seed, sequence, frame, codebook).

Equal on every platform, and independent of batch, row, device and earlier calls.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

from legato.errors import SamplingError

SEED_LIMIT = 2**64
_PER_BLOCK = 8


@lru_cache(maxsize=1024)
def uniforms(seed: int, sequence: int, frame: int, codebooks: int) -> tuple[float, ...]:
    """One number in [0, 1) for each of the first `codebooks` codebooks of one frame.

    `seed`: 0 to 2^64 - 1. `sequence`: index of the sequence in its stream. `frame`: index in the sequence. Number j is
    the upper 53 bits of word j % 8 (64 bits, little-endian) of BLAKE2b over (seed, sequence, frame, j // 8), divided by
    2^53. It does not depend on `codebooks`. Cached, because each frame calls this twice: for the first code and for the
    residual codes. Raises `SamplingError` for a seed out of range.
    """
    if not 0 <= seed < SEED_LIMIT:
        raise SamplingError(f"seed must be between 0 and 2^64 - 1, not {seed}", field="seed")
    words: list[int] = []
    for block in range(-(-codebooks // _PER_BLOCK)):
        key = struct.pack("<QQQQ", seed, sequence, frame, block)
        words.extend(struct.unpack(f"<{_PER_BLOCK}Q", hashlib.blake2b(key).digest()))
    return tuple((word >> 11) * 2.0**-53 for word in words[:codebooks])
