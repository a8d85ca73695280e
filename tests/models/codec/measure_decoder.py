"""Time one call of the codec decoder: `python -m tests.models.codec.measure_decoder FOLDER`.

Prints the minimum and the median time of a window, and the real-time factor (compute seconds per second of audio of all
rows). Codes are random. The time to gather and store histories in the engine is not included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from legato.models.codec.decoder import CodecDecoder
from legato.weights.loading import load_model

CALLS, WARM = 7, 2


def seconds_of(decoder: CodecDecoder, rows: int, frames: int) -> list[float]:
    """Durations of `CALLS` calls in seconds, sorted."""
    config, taken = decoder.config, []
    codes = torch.randint(config.codebook_size, (rows, frames, config.num_quantizers))
    history = decoder.initial_history(rows)
    for call in range(WARM + CALLS):
        began = time.perf_counter()
        _, history = decoder.forward(history, codes)
        if call >= WARM:
            taken.append(time.perf_counter() - began)
    return sorted(taken)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a checkpoint")
    parser.add_argument("--codec-dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frames", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model(arguments.folder, talker_dtype="bfloat16", codec_dtype=arguments.codec_dtype)
    rate_hz = model.config.codec.sample_rate_hz
    for rows in arguments.batches:
        for frames in arguments.frames:
            taken = seconds_of(model.decoder, rows, frames)
            audio_s = rows * frames * model.decoder.frame_samples / rate_hz
            median = statistics.median(taken)
            print(
                f"{arguments.codec_dtype}, {arguments.threads} threads, {rows} rows, windows of {frames}: "
                f"{1000 * taken[0]:.1f} ms minimum, {1000 * median:.1f} ms median, "
                f"real-time factor {median / audio_s:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
