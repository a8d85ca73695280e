"""Windows of many streams, one codec batch. Owns the codec slots of the engine; knows no talker and no packet.

A window that holds a code outside its codebook is refused before anything is computed, so that it can fail its own
stream alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.engine.batches import batches
from legato.engine.codec_pool import CodecPool
from legato.engine.leases import CodecLease
from legato.flow import Frame
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import check_codes
from legato.models.codec.state import CodecRows


@dataclass(frozen=True, slots=True)
class Window:
    """The frames that one stream gets decoded in this turn."""

    lease: CodecLease
    frames: tuple[Frame, ...]


class WindowCompute(Protocol):
    """Windows of a batch decoded, however that is launched."""

    def decode(self, leases: Sequence[CodecLease], codes: Tensor, counts: Sequence[int]) -> Tensor:
        """Samples [B, at least T * frame_samples] of `codes` [B, T, Q] on the host, `counts` [B] of them valid.

        The histories of `leases` advance by exactly the valid frames; samples behind them mean nothing.
        """


class Windows:
    """Call by call."""

    def __init__(self, decoder: CodecDecoder, pool: CodecPool) -> None:
        self.pool = pool
        self.device = next(decoder.parameters()).device
        self.codebooks = decoder.config.num_quantizers
        self._decoder = decoder

    def decode(self, leases: Sequence[CodecLease], codes: Tensor, counts: Sequence[int]) -> Tensor:
        """See `WindowCompute`."""
        ragged = min(counts) < codes.shape[1]
        frames = torch.tensor(list(counts)).to(self.device) if ragged else None
        samples, history = self._decoder.forward(self.pool.gather(leases), codes.to(self.device), frames)
        self.pool.scatter(leases, history)
        return samples

    def advance(self, rows: CodecRows, codes: Tensor, frames: Tensor) -> Tensor:
        """The same with everything on the device, for slots that the caller answers for."""
        storage = self.pool.storage
        samples, history = self._decoder.forward(storage.gather(rows), codes, frames)
        storage.scatter(rows, history)
        return samples


class CodecStage:
    """The codec decoder over the engine's slots."""

    def __init__(self, decoder: CodecDecoder, pool: CodecPool, *, rows_per_call: int) -> None:
        self._decoder = decoder
        self.windows: WindowCompute = Windows(decoder, pool)
        self.rows_per_call = rows_per_call
        self.pool = pool
        self._device = next(decoder.parameters()).device

    def check(self, frames: Sequence[Frame]) -> None:
        """`BadCodeError` naming frame, codebook and value when a code is outside its codebook."""
        check_codes(frames, self._decoder.config.codebook_size)

    def decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        """Samples of each window, float32 [frames * frame_samples]; the histories advance by exactly its frames."""
        return [each for batch in batches(windows, self.rows_per_call) for each in self._decode(batch)]

    def _decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        counts = [len(window.frames) for window in windows]
        longest = max(counts)
        filler = (0,) * len(windows[0].frames[0])
        codes = torch.tensor(
            [[*window.frames, *(filler,) * (longest - len(window.frames))] for window in windows], dtype=torch.long
        )
        samples = self.windows.decode([window.lease for window in windows], codes, counts)
        host = samples.float().cpu().numpy()
        return [host[row, : count * self._decoder.frame_samples] for row, count in enumerate(counts)]

    @torch.inference_mode()
    def decode_whole(self, frames: Sequence[Frame]) -> npt.NDArray[np.float32]:
        """All of a stream's frames at once, on a history of their own: what the windows must equal."""
        codes = torch.tensor([frames], dtype=torch.long, device=self._device)
        samples, _ = self._decoder.forward(self._decoder.fresh(1), codes)
        whole: npt.NDArray[np.float32] = samples[0].float().cpu().numpy()
        return whole
