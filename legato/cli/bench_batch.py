"""`legato bench batch`: throughput by batch size, with and without deterministic mode.

Holds no state; `legato.bench.batch` measures.
"""

from __future__ import annotations

import click

from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.loading import load_weights, prepare_device
from legato.cli.model_options import ModelOptions, cuda_graphs_option, max_seq_len_option, model_options
from legato.cli.terminal import note

EPILOG = """\b
Examples:
  legato bench batch                               the voice in this package, batches 1, 2, 4, 8
  legato bench batch --model ./checkpoint --batches 1,4,16 --frames 50 --html batch.html

All streams start together and generate the same number of frames. In the official models a frame is 80 ms of audio, so
12.5 frames a second per stream is real time. Measure on an idle machine.
"""


@click.command(epilog=EPILOG, short_help="Throughput by batch size.")
@model_options(positional=True)
@click.option(
    "--batches",
    callback=numbers("--batches"),
    default="1,2,4,8",
    show_default=True,
    help="Batch sizes (concurrent streams) to measure.",
)
@click.option(
    "--frames", type=click.IntRange(min=1), default=32, show_default=True, help="Frames to generate per stream."
)
@max_seq_len_option(512)
@cuda_graphs_option
@output_options()
def batch(
    model_options: ModelOptions,
    batches: tuple[float, ...],
    frames: int,
    max_seq_len: int,
    outputs: Outputs,
    cuda_graphs: bool,
) -> None:
    """Measure throughput by batch size, in the default mode and in deterministic mode."""
    from legato.bench.batch import BatchSettings, measure_batch
    from legato.bench.environment import model_info, this_machine
    from legato.bench.workload import plain_request
    from legato.engine.frontend import create_front_end

    prepare_device(model_options)
    backend = load_weights(model_options)
    front_end = create_front_end(backend.model)
    request = plain_request(backend.model, front_end)
    info = model_info(model_options.model, backend, cuda_graphs=cuda_graphs)
    machine = this_machine(model_options.device)
    records = []
    for size in map(int, batches):
        for deterministic in (False, True):
            settings = BatchSettings(size, frames, max_seq_len, deterministic, cuda_graphs)
            records.append(measure_batch(backend, front_end, request, settings, machine=machine, model_info=info))
            note(f"{size} streams, {records[-1].mode}: {records[-1].total_frames_per_s:.1f} frames a second")
    outputs.write(records, f"legato bench batch: {model_options.model}")
