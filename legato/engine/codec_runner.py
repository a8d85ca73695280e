"""Decode the windows of several streams in one codec batch. A window is the run of frames decoded in one codec call.

Each stream has its own decoder history. Codes are checked before a window is decoded, so that an invalid code fails
only its own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.backends.base import Backend
from legato.engine.batches import batches
from legato.engine.codec_state import CodecPool
from legato.engine.leases import CodecLease
from legato.models.codec.quantizer import check_codes
from legato.types import Frame


@dataclass(frozen=True, slots=True)
class Window:
    """The frames of one stream that are decoded in this step."""

    lease: CodecLease
    frames: tuple[Frame, ...]


class CodecRunner:
    """Runs the codec decoder over the codec slots of `pool`, through `backend`."""

    def __init__(self, backend: Backend, pool: CodecPool, *, rows_per_call: int) -> None:
        self.backend = backend
        self.pool = pool
        self.rows_per_call = rows_per_call
        self._decoder = backend.decoder
        self._device = backend.model.device

    def check(self, frames: Sequence[Frame]) -> None:
        """Raise `BadCodeError`, with frame, codebook and value, if a code is outside its codebook."""
        check_codes(frames, self._decoder.config.codebook_size)

    def decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        """Samples of each window, float32 [frames * frame_samples]. Updates the histories of the streams."""
        return [each for batch in batches(windows, self.rows_per_call) for each in self._decode(batch)]

    def _decode(self, windows: Sequence[Window]) -> list[npt.NDArray[np.float32]]:
        counts = [len(window.frames) for window in windows]
        longest = max(counts)
        padding = (0,) * len(windows[0].frames[0])
        codes = torch.tensor(
            [[*window.frames, *(padding,) * (longest - len(window.frames))] for window in windows], dtype=torch.long
        )
        samples = self._samples([window.lease for window in windows], codes, counts)
        host = samples.float().cpu().numpy()
        return [host[row, : count * self._decoder.frame_samples] for row, count in enumerate(counts)]

    def _samples(self, leases: Sequence[CodecLease], codes: Tensor, counts: Sequence[int]) -> Tensor:
        """Samples [B, at least T * frame_samples] of `codes` [B, T, Q].

        `counts`: valid frames of each row. Samples of the padding frames after them are undefined.
        """
        if self.backend.decodes_in_place:
            rows = self.pool.rows(leases)
            return self.backend.decode_codec_in_place(self.pool.storage, rows, codes, torch.tensor(list(counts)))
        ragged = min(counts) < codes.shape[1]
        frames = torch.tensor(list(counts)).to(self._device) if ragged else None
        samples, history = self.backend.decode_codec(self.pool.gather(leases), codes.to(self._device), frames)
        self.pool.scatter(leases, history)
        return samples

    @torch.inference_mode()
    def decode_whole(self, frames: Sequence[Frame]) -> npt.NDArray[np.float32]:
        """Decode all frames of a stream in one window from the initial state. Streamed windows must equal it."""
        codes = torch.tensor([frames], dtype=torch.long, device=self._device)
        samples, _ = self.backend.decode_codec(self._decoder.initial_history(1), codes, None)
        whole: npt.NDArray[np.float32] = samples[0].float().cpu().numpy()
        return whole
