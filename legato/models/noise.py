"""Where chance comes from: uniform numbers as a pure function of (seed, sequence, frame, codebook).

Owns nothing. The same on every platform, and never dependent on the batch, the row, the device or what ran before.
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

    `seed` in 0 .. 2^64 - 1; `sequence` is the number of the sequence within its stream, `frame` within the sequence.
    Number j is the upper 53 bits of the j-th little-endian 64-bit word of BLAKE2b over (seed, sequence, frame, j // 8),
    divided by 2^53; so it does not depend on how many codebooks are asked for. A frame asks twice: for its first code,
    then for the others.
    """
    if not 0 <= seed < SEED_LIMIT:
        raise SamplingError(f"seed must be between 0 and 2^64 - 1, not {seed}", field="seed")
    words: list[int] = []
    for block in range(-(-codebooks // _PER_BLOCK)):
        key = struct.pack("<QQQQ", seed, sequence, frame, block)
        words.extend(struct.unpack(f"<{_PER_BLOCK}Q", hashlib.blake2b(key).digest()))
    return tuple((word >> 11) * 2.0**-53 for word in words[:codebooks])
