"""Reference recordings of any common kind -> mono float32 samples at the model's rate, or a clear refusal.

Owns no state. Reading is libsndfile's work (WAV, FLAC, MP3, Ogg Vorbis and Opus, AIFF, AU, CAF and more), the change of
rate soxr's. Knows no model: limits are stated here, the target rate is an argument.

Level: a recording whose peak is over full scale is brought down to it, one whose peak is under -26 dBFS is brought up
to -12 dBFS; any other level is left as it is. Channels are averaged; where they cancel out, the loudest one is taken.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from legato.errors import ReferenceAudioError

FIELD = "clone"


@dataclass(frozen=True, slots=True)
class ReferenceLimits:
    """What a usable reference is.

    `shortest_s` to `longest_s` seconds: 3 to 15 are best; the codec encoder attends over all of it, so memory and time
    grow with length. `silence_level`: its loudest 20 ms must be above this root mean square (-60 dBFS).
    """

    shortest_s: float = 1.0
    longest_s: float = 60.0
    silence_level: float = 0.001


LOWEST_RATE_HZ = 4_000
HIGHEST_RATE_HZ = 768_000
_QUIET_PEAK, _RAISED_PEAK = 0.05, 0.25


def load_reference(
    source: str | Path | bytes | npt.NDArray[np.float32],
    sample_rate_hz: int,
    *,
    limits: ReferenceLimits | None = None,
) -> npt.NDArray[np.float32]:
    """Read `source` (a path, a file's bytes, or mono samples that are already at `sample_rate_hz`).

    Returns float32 [N] at `sample_rate_hz`, peak at most 1. `ReferenceAudioError` if it cannot be read, holds samples
    that are not finite, is silent, or is shorter or longer than `limits`.
    """
    limits = limits or ReferenceLimits()
    if isinstance(source, np.ndarray):
        samples, rate_hz, name = source, sample_rate_hz, "the samples given"
    else:
        samples, rate_hz = _read(source, limits)
        name = "the reference audio" if isinstance(source, bytes) else f"reference audio {str(source)!r}"
    return prepare_reference(samples, rate_hz, sample_rate_hz, limits=limits, name=name)


def prepare_reference(
    samples: npt.NDArray[np.floating],
    rate_hz: int,
    sample_rate_hz: int,
    *,
    limits: ReferenceLimits,
    name: str = "the reference audio",
) -> npt.NDArray[np.float32]:
    """Samples [N] or [N, channels] at `rate_hz` -> float32 [M] at `sample_rate_hz`, checked against `limits`."""
    if samples.ndim > 2 or samples.size == 0:
        raise ReferenceAudioError(f"{name} holds no samples", field=FIELD)
    if not LOWEST_RATE_HZ <= rate_hz <= HIGHEST_RATE_HZ:
        raise ReferenceAudioError(
            f"{name} has a rate of {rate_hz} Hz; {LOWEST_RATE_HZ} to {HIGHEST_RATE_HZ} can be used", field=FIELD
        )
    if not np.isfinite(samples).all():
        raise ReferenceAudioError(f"{name} holds samples that are not finite numbers", field=FIELD)
    _check_length(len(samples) / rate_hz, limits, name)
    mono = _to_mono(samples)
    _check_heard(mono, rate_hz, limits, name)
    resampled = mono if rate_hz == sample_rate_hz else soxr.resample(mono, rate_hz, sample_rate_hz, quality="VHQ")
    peak = float(np.abs(resampled).max())
    gain = 1.0 / peak if peak > 1.0 else (_RAISED_PEAK / peak if peak < _QUIET_PEAK else 1.0)
    return np.ascontiguousarray(resampled * np.float32(gain), dtype=np.float32)


def _read(source: str | Path | bytes, limits: ReferenceLimits) -> tuple[npt.NDArray[np.float32], int]:
    """Decode at most a little more than the longest allowed, whatever length the file claims."""
    if isinstance(source, (str, Path)) and not Path(source).is_file():
        raise ReferenceAudioError(f"there is no reference audio file {str(source)!r}", field=FIELD)
    try:
        with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as file:
            rate_hz = int(file.samplerate)
            most = round((limits.longest_s + 1.0) * rate_hz)
            blocks, count = [], 0
            while count < most:
                block = file.read(min(most - count, 65_536), dtype="float32", always_2d=True)
                if not len(block):
                    break
                blocks.append(block)
                count += len(block)
    except (soundfile.SoundFileError, ValueError, OSError) as error:
        what = "the reference audio" if isinstance(source, bytes) else f"reference audio {str(source)!r}"
        raise ReferenceAudioError(
            f"{what} cannot be read ({error}); give WAV, FLAC, MP3, Ogg or AIFF", field=FIELD
        ) from error
    return np.concatenate(blocks) if blocks else np.empty((0, 1), dtype=np.float32), rate_hz


def _check_length(seconds: float, limits: ReferenceLimits, name: str) -> None:
    if seconds < limits.shortest_s:
        raise ReferenceAudioError(
            f"{name} lasts {seconds:.2f} s, too short to copy a voice: give at least {limits.shortest_s:g} s "
            "(3 to 15 s are best)",
            field=FIELD,
        )
    if seconds > limits.longest_s:
        raise ReferenceAudioError(
            f"{name} is longer than {limits.longest_s:g} s: cut it (3 to 15 s are best)", field=FIELD
        )


def _to_mono(samples: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """[N] or [N, channels] -> [N]: the mean, or the loudest channel where the mean cancels 20 dB of it."""
    channels = np.asarray(samples, dtype=np.float32).reshape(len(samples), -1)
    mean = np.asarray(channels.mean(axis=1), dtype=np.float32)
    power = np.mean(np.square(channels, dtype=np.float64), axis=0)
    loudest = int(power.argmax())
    if np.mean(np.square(mean, dtype=np.float64)) < 0.01 * power[loudest]:
        return np.ascontiguousarray(channels[:, loudest])
    return mean


def _check_heard(mono: npt.NDArray[np.float32], rate_hz: int, limits: ReferenceLimits, name: str) -> None:
    window = max(1, rate_hz // 50)
    whole = len(mono) // window * window
    levels = np.sqrt(np.mean(np.square(mono[:whole].reshape(-1, window), dtype=np.float64), axis=1))
    if float(levels.max()) < limits.silence_level:
        raise ReferenceAudioError(
            f"{name} is silent: its loudest 20 ms are below {20 * np.log10(limits.silence_level):.0f} dBFS", field=FIELD
        )
