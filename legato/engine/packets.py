"""Samples of a stream -> `Packet`: host bytes, numbered by sample, checked to be finite. Owns nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from legato.errors import NonFiniteError
from legato.flow import FinishReason, Packet, StreamId


def check_finite(samples: npt.NDArray[np.float32], *, first_sample: int) -> None:
    """Refuse NaN and infinity: they are an error of the stream, never audio."""
    bad = np.flatnonzero(~np.isfinite(samples))
    if bad.size:
        at = int(bad[0])
        raise NonFiniteError(
            f"the codec made {bad.size} samples that are not finite, the first at sample {first_sample + at} "
            f"({samples[at]}); try the codec in fp32"
        )


def make_packet(
    stream: StreamId,
    samples: npt.NDArray[np.float32],
    *,
    first_sample: int,
    frames: int,
    sample_rate_hz: int,
    reasons: list[FinishReason],
) -> Packet:
    """A packet of `samples` [n] in [-1, 1]. `reasons`: the finish reason of the last packet, nothing before."""
    check_finite(samples, first_sample=first_sample)
    return Packet(
        stream=stream,
        first_sample=first_sample,
        frames=frames,
        sample_rate_hz=sample_rate_hz,
        float32_le=np.ascontiguousarray(samples, dtype="<f4").tobytes(),
        last=bool(reasons),
        finish_reason=reasons[0] if reasons else None,
    )


def empty_last_packet(stream: StreamId, first_sample: int, sample_rate_hz: int, reason: FinishReason) -> Packet:
    """The last packet of a stream whose end became known after its last sample had gone, or that was cancelled."""
    return make_packet(
        stream,
        np.empty(0, dtype=np.float32),
        first_sample=first_sample,
        frames=0,
        sample_rate_hz=sample_rate_hz,
        reasons=[reason],
    )
