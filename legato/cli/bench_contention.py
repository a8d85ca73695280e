"""`legato bench contention`: RTF while other processes keep cores busy.

Starts and stops the busy processes; `legato.bench.contention` measures.
"""

from __future__ import annotations

import click

from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.loading import load_weights, prepare_device, set_threads
from legato.cli.model_options import ModelOptions, model_options
from legato.cli.terminal import note
from legato.errors import InputError

EPILOG = """\b
Examples:
  legato bench contention                                 the voice in this package, 0, 1 and 2 busy processes
  legato bench contention ./0.6B-int8 --codec-dtype bfloat16 --rounds 5 --records contention.jsonl

Each round measures every number of busy processes with one thread and with --threads threads. Only the last two columns
are comparable between machines: the RTF relative to the idle machine. Stop other programs first. CPU only.
"""


@click.command(epilog=EPILOG, short_help="RTF while other processes keep cores busy.")
@model_options(positional=True)
@click.option(
    "--busy", type=click.IntRange(min=0), default=2, show_default=True, help="Maximum number of busy processes."
)
@click.option("--frames", type=click.IntRange(min=1), default=24, show_default=True, help="Frames to generate per run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each case.")
@click.option(
    "--packet-frames",
    callback=numbers("--packet-frames"),
    default="4",
    show_default=True,
    help="Frames (80 ms) in the first, second, ... packet.",
)
@output_options()
def contention(
    model_options: ModelOptions,
    busy: int,
    frames: int,
    rounds: int,
    packet_frames: tuple[float, ...],
    outputs: Outputs,
) -> None:
    """Measure the RTF of one stream while other processes keep cores busy, with one and with several threads."""
    from legato.bench.contention import ContentionSettings, measure_contention
    from legato.bench.records import ContentionRecord

    if not model_options.device.startswith("cpu"):
        raise InputError("this benchmark measures CPU threads: use --device cpu", field="device")
    prepare_device(model_options)
    threads = set_threads(model_options.threads)
    settings = ContentionSettings(
        busy=tuple(range(busy + 1)),
        threads=tuple(dict.fromkeys((1, threads))),
        packet_frames=tuple(map(int, packet_frames)),
        frames=frames,
        rounds=rounds,
    )
    records: list[ContentionRecord] = []
    backend = load_weights(model_options)
    for record in measure_contention(backend, model_options.model, model_options.device, settings, set_threads):
        records.append(record)
        note(f"{record.busy_processes} busy, {record.threads} threads: RTF {record.real_time_factor:.3f}")
    outputs.write(records, f"legato bench contention: {model_options.model}")
