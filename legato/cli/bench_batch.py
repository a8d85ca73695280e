"""`legato bench batch`: throughput against batch size, in both modes. Figures of speed and memory, no tolerances.

Owns nothing after it printed; the measuring is `legato.bench.batch`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from legato.cli.model_options import check_device, compute_options, locate_chosen, set_threads
from legato.cli.terminal import note, print_rich

EPILOG = """\b
Examples:
  legato bench batch                               the voice in this package, batches 1, 2, 4, 8
  legato bench batch ./checkpoint --batches 1,4,16 --frames 50 --json figures.json

All streams start together and make the same number of frames. A frame is 80 ms of sound in the official models, so
12.5 frames a second for each stream is real time. Figures are worth what the machine did beside: let it be idle.
"""


@click.command(epilog=EPILOG, short_help="Throughput against batch size.")
@click.argument("model", default="embedded", metavar="[MODEL]")
@click.option("--batches", default="1,2,4,8", show_default=True, help="Streams at once, one table row each.")
@click.option("--frames", type=click.IntRange(min=1), default=32, show_default=True, help="Frames of each stream.")
@click.option("--positions", type=click.IntRange(min=16), default=512, show_default=True, help="Positions of a slot.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures.")
@compute_options
def batch(
    model: str,
    batches: str,
    frames: int,
    positions: int,
    json_file: Path | None,
    dtype: str,
    codec_dtype: str,
    device: str,
    threads: int | None,
) -> None:
    """Throughput against batch size, in the default mode and in deterministic mode beside each other."""
    from legato.bench.batch import Load, measure
    from legato.bench.report import Setting, as_json, batch_table, price
    from legato.bench.request import plain_request
    from legato.engine.frontend import front_end_of
    from legato.models.load import load_model

    sizes = _sizes(batches)
    check_device(device)
    count = set_threads(threads)
    talker = dtype if dtype != "auto" else ("float32" if device.startswith("cpu") else "bfloat16")
    codec = codec_dtype if codec_dtype != "auto" else "float32"
    loaded = load_model(locate_chosen(model), talker_dtype=talker, codec_dtype=codec, device=device)
    front_end = front_end_of(loaded)
    request = plain_request(loaded, front_end)
    rows = []
    for size in sizes:
        for deterministic in (False, True):
            rows.append(measure(loaded, front_end, request, Load(size, frames, positions, deterministic)))
            note(f"{size} streams, {rows[-1].mode}: {rows[-1].total_frames_s:.1f} frames a second")
    setting = Setting(model, device, talker, codec, count, frames, positions, request.packets.frames)
    note(f"{model} on {device}, talker {talker}, codec {codec}, {count} threads, {frames} frames a stream")
    print_rich(batch_table(rows))
    for size, times in price(rows).items():
        click.echo(f"deterministic mode takes {times:.2f} times as long at {size} streams")
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(setting, rows), indent=2) + "\n", encoding="utf-8")


def _sizes(batches: str) -> list[int]:
    """`1,2,4` as numbers."""
    parts = [part.strip() for part in batches.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"give numbers above 0 like 1,2,4, not {batches!r}", param_hint="--batches")
    return [int(part) for part in parts]
