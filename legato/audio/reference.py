"""Load a reference recording as mono float32 samples at the model's sample rate.

libsndfile decodes (WAV, FLAC, MP3, Ogg Vorbis and Opus, AIFF, AU, CAF and more) and soxr resamples.

Level: a peak above full scale is scaled down to full scale, a peak below -26 dBFS is scaled up to -12 dBFS, other
levels are unchanged. Channels are averaged; if they cancel out, the loudest channel is used.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from legato.audio.containers import split_recordings
from legato.errors import ReferenceAudioError

FIELD = "clone"


@dataclass(frozen=True, slots=True)
class ReferenceLimits:
    """Limits of a usable reference.

    `min_s`, `max_s`: duration in seconds; 3 to 15 s are best. The codec encoder attends over the whole recording, so
    memory and time grow with its length. `silence_level`: the loudest 20 ms must have at least this RMS (-60 dBFS).
    """

    min_s: float = 1.0
    max_s: float = 60.0
    silence_level: float = 0.001


MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 8
_REPAIRED_BYTES = 64 * 2**20
"""Larger files are read from the disk while they are decoded, as they are."""
_BLOCK_SAMPLES = 65_536
"""Samples per decoded block, over all channels."""
_QUIET_PEAK = 0.05
_TARGET_PEAK = 0.25


def load_reference(
    source: str | Path | bytes | npt.NDArray[np.float32],
    sample_rate_hz: int,
    *,
    limits: ReferenceLimits | None = None,
) -> npt.NDArray[np.float32]:
    """Load `source`: a path, a file's bytes, or samples [N] or [N, channels] already at `sample_rate_hz`.

    Returns float32 [N] at `sample_rate_hz`, peak at most 1. Raises `ReferenceAudioError` if it cannot be decoded, has
    non-finite samples, is silent, or is outside `limits`.
    """
    limits = limits or ReferenceLimits()
    if isinstance(source, np.ndarray):
        name = "the reference samples"
        if source.ndim > 2 or source.size == 0:
            raise ReferenceAudioError(f"{name} are empty", field=FIELD)
        _check_length(len(source) / sample_rate_hz, limits, name)
        samples = np.asarray(source, dtype=np.float32).reshape(len(source), -1)
        mono = _to_mono(lambda: iter((samples,)), name)
        rate_hz = sample_rate_hz
    else:
        name = "the reference audio" if isinstance(source, bytes) else f"reference audio {str(source)!r}"
        mono, rate_hz = _decode(source, limits, name)
    return _prepare(mono, rate_hz, sample_rate_hz, limits, name)


def _prepare(
    mono: npt.NDArray[np.float32], rate_hz: int, sample_rate_hz: int, limits: ReferenceLimits, name: str
) -> npt.NDArray[np.float32]:
    """Check mono [N] at `rate_hz` against `limits`, resample it to `sample_rate_hz` and adjust its level."""
    _check_length(len(mono) / rate_hz, limits, name)
    _check_not_silent(mono, rate_hz, limits, name)
    resampled = mono if rate_hz == sample_rate_hz else soxr.resample(mono, rate_hz, sample_rate_hz, quality="VHQ")
    peak = float(np.abs(resampled).max())
    gain = 1.0
    if peak > 1.0:
        gain = 1.0 / peak
    elif peak < _QUIET_PEAK:
        gain = _TARGET_PEAK / peak
    return np.ascontiguousarray(resampled * np.float32(gain), dtype=np.float32)


def _decode(source: str | Path | bytes, limits: ReferenceLimits, name: str) -> tuple[npt.NDArray[np.float32], int]:
    """Decode to mono [N]; also returns the file's sample rate. Recordings that were joined are decoded one by one."""
    if isinstance(source, (str, Path)):
        if not Path(source).is_file():
            raise ReferenceAudioError(f"no reference audio file {str(source)!r}", field=FIELD)
        if Path(source).stat().st_size > _REPAIRED_BYTES:
            return _decode_one(source, limits, name)
        source = Path(source).read_bytes()
    parts: list[npt.NDArray[np.float32]] = []
    rates: set[int] = set()
    for part in split_recordings(source):
        mono, rate_hz = _decode_one(part, limits, name)
        parts.append(mono)
        rates.add(rate_hz)
        if len(rates) > 1:
            raise ReferenceAudioError(
                f"{name} has several recordings with different sample rates joined: use one of them", field=FIELD
            )
        _check_length(sum(map(len, parts)) / rate_hz, ReferenceLimits(min_s=0.0, max_s=limits.max_s), name)
    return (np.concatenate(parts) if len(parts) > 1 else parts[0]), rates.pop()


def _decode_one(source: str | Path | bytes, limits: ReferenceLimits, name: str) -> tuple[npt.NDArray[np.float32], int]:
    """Decode one recording.

    Sample rate and channel count are checked before decoding, and blocks are mixed down while decoding. So memory is
    bounded by `max_s` of mono audio at the highest rate, whatever the file claims or contains.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as file:
            rate_hz, channels = int(file.samplerate), int(file.channels)
            if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
                raise ReferenceAudioError(
                    f"{name} has a sample rate of {rate_hz} Hz: use {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz",
                    field=FIELD,
                )
            if channels > MAX_CHANNELS:
                raise ReferenceAudioError(
                    f"{name} has {channels} channels: use a recording with at most {MAX_CHANNELS}", field=FIELD
                )
            return _to_mono(lambda: _blocks(file, limits.max_s), name), rate_hz
    except (soundfile.SoundFileError, ValueError, OSError) as error:
        # `str(error)` would have the address of the buffer.
        reason = error.error_string if isinstance(error, soundfile.LibsndfileError) else type(error).__name__
        raise ReferenceAudioError(
            f"{name} cannot be decoded ({reason.rstrip('.')}): use WAV, FLAC, MP3, Ogg or AIFF", field=FIELD
        ) from error


def _blocks(file: soundfile.SoundFile, max_s: float) -> Iterator[npt.NDArray[np.float32]]:
    """Decode the file from its start in blocks [n, channels], up to one second more than `max_s`.

    The extra second is enough to detect a file that is too long without decoding all of it.
    """
    if file.tell():
        file.seek(0)
    remaining = round((max_s + 1.0) * file.samplerate)
    while remaining > 0:
        block = file.read(min(remaining, max(1, _BLOCK_SAMPLES // file.channels)), dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block
        remaining -= len(block)


def _check_length(seconds: float, limits: ReferenceLimits, name: str) -> None:
    if seconds < limits.min_s:
        raise ReferenceAudioError(
            f"{name} is too short ({seconds:.2f} s): use at least {limits.min_s:g} s (3 to 15 s are best)",
            field=FIELD,
        )
    if seconds > limits.max_s:
        raise ReferenceAudioError(
            f"{name} is longer than {limits.max_s:g} s: shorten it (3 to 15 s are best)", field=FIELD
        )


def _to_mono(blocks: Callable[[], Iterator[npt.NDArray[np.float32]]], name: str) -> npt.NDArray[np.float32]:
    """Mix blocks [n, channels] down to mono [N]: the mean, or the loudest channel if the mean is 20 dB below it.

    Each call of `blocks` iterates from the beginning. The loudest channel is known only after a full pass; a second
    decoding pass avoids keeping all channels in memory.
    """
    means: list[npt.NDArray[np.float32]] = []
    energy: npt.NDArray[np.float64] = np.zeros(0)
    mean_energy = 0.0
    for block in blocks():
        if not np.isfinite(block).all():
            raise ReferenceAudioError(f"{name} has samples that are not finite", field=FIELD)
        mean = np.asarray(block.mean(axis=1), dtype=np.float32)
        power = np.square(block, dtype=np.float64).sum(axis=0)
        energy = energy + power if len(energy) else power
        mean_energy += float(np.square(mean, dtype=np.float64).sum())
        means.append(mean)
    if not means:
        raise ReferenceAudioError(f"{name} has no samples", field=FIELD)
    loudest = int(energy.argmax())
    if mean_energy < 0.01 * energy[loudest]:
        return np.concatenate([block[:, loudest] for block in blocks()])
    return np.concatenate(means)


def _check_not_silent(mono: npt.NDArray[np.float32], rate_hz: int, limits: ReferenceLimits, name: str) -> None:
    """The loudest 20 ms of mono [N], at 1 s or more, must reach `silence_level` in the frequencies of a voice.

    The moving average over 20 ms is subtracted twice: constant and slowly changing levels, which are no sound, vanish.
    """
    window = max(1, rate_hz // 50)  # 20 ms
    samples = mono.astype(np.float64)
    for _ in range(2):
        sums = np.concatenate([[0.0], np.cumsum(samples)])
        samples = samples[window // 2 :][: len(sums) - window] - (sums[window:] - sums[:-window]) / window
    whole = len(samples) // window * window
    levels = np.sqrt(np.mean(np.square(samples[:whole].reshape(-1, window)), axis=1))
    if float(levels.max()) < limits.silence_level:
        raise ReferenceAudioError(
            f"{name} is silent: its loudest 20 ms are below {20 * np.log10(limits.silence_level):.0f} dBFS, without "
            "what is below the frequencies of a voice",
            field=FIELD,
        )
