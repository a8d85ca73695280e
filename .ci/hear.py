"""Checks that a WAV file sounds like speech: format, duration, level, and level changes as of syllables.

Uses the standard library and numpy. It does not recognize words; the recipe's speech recognizer does.
"""

from __future__ import annotations

import sys
import wave

import numpy as np

SAMPLE_RATE_HZ = 24_000
FRAME_SAMPLES = 1_920


def main(path: str) -> int:
    with wave.open(path) as file:
        audio_format = (file.getframerate(), file.getnchannels(), file.getsampwidth())
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768.0
    seconds = len(samples) / SAMPLE_RATE_HZ
    windows = samples[: len(samples) // 480 * 480].reshape(-1, 480)  # 20 ms each
    level_db = 10.0 * np.log10((windows**2).mean(axis=1) + 1e-10)
    peak, loud, spread_db = np.abs(samples).max(), float((level_db > -40.0).mean()), float(level_db.std())
    spectrum = np.abs(np.fft.rfft(windows * np.hanning(480))) ** 2 + 1e-12
    flatness = float(np.median(np.exp(np.log(spectrum).mean(axis=1)) / spectrum.mean(axis=1)))
    print(f"{path}: {seconds:.2f} s, peak {peak:.2f}, {loud:.0%} louder than -40 dB, level spread {spread_db:.1f} dB,")
    print(f"  spectral flatness {flatness:.3f} (white noise is near 0.56)")
    checks = {
        "24 kHz, mono, 16 bit": audio_format == (SAMPLE_RATE_HZ, 1, 2),
        "whole frames": len(samples) % FRAME_SAMPLES == 0,
        "between 0.6 and 8 seconds": 0.6 <= seconds <= 8.0,
        "audible and not clipped": peak >= 0.05 and float((np.abs(samples) > 0.999).mean()) < 0.001,
        "at least 30% is loud": loud >= 0.3,
        "level varies": spread_db >= 5.0,
        "not white noise": flatness < 0.3,
    }
    for name, holds in checks.items():
        print(f"  {'yes' if holds else 'NO '}  {name}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
