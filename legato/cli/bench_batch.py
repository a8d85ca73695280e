"""`legato bench batch`: throughput against batch size, in both modes. Figures of speed and memory, no tolerances.

Owns nothing after it printed; the measuring is `legato.bench.batch`.
"""

from __future__ import annotations

import click

from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.model_options import check_device, compute_options, graphs_option, quant_option, set_threads
from legato.cli.terminal import note
from legato.cli.verify import load_weights

EPILOG = """\b
Examples:
  legato bench batch                               the voice in this package, batches 1, 2, 4, 8
  legato bench batch ./checkpoint --batches 1,4,16 --frames 50 --html batch.html

All streams start together and make the same number of frames. A frame is 80 ms of sound in the official models, so
12.5 frames a second for each stream is real time. Figures are worth what the machine did beside: let it be idle.
"""


@click.command(epilog=EPILOG, short_help="Throughput against batch size.")
@click.argument("model", default="embedded", metavar="[MODEL]")
@click.option(
    "--batches",
    callback=numbers("--batches"),
    default="1,2,4,8",
    show_default=True,
    help="Streams at once, one table row each.",
)
@click.option("--frames", type=click.IntRange(min=1), default=32, show_default=True, help="Frames of each stream.")
@click.option("--positions", type=click.IntRange(min=16), default=512, show_default=True, help="Positions of a slot.")
@quant_option
@compute_options
@graphs_option
@output_options()
def batch(
    model: str,
    batches: tuple[float, ...],
    frames: int,
    positions: int,
    outputs: Outputs,
    dtype: str,
    codec_dtype: str,
    quant: str,
    device: str,
    threads: int | None,
    graphs: bool,
) -> None:
    """Throughput against batch size, in the default mode and in deterministic mode beside each other."""
    from legato.bench.batch import Load, measure
    from legato.bench.facts import model_facts, this_machine
    from legato.bench.request import plain_request
    from legato.engine.frontend import front_end_of

    check_device(device)
    set_threads(threads)
    loaded = load_weights(model, device, dtype, codec_dtype, quant)
    front_end = front_end_of(loaded)
    request = plain_request(loaded, front_end)
    facts, machine = model_facts(model, loaded, graphs=graphs), this_machine(device)
    records = []
    for size in map(int, batches):
        for deterministic in (False, True):
            wanted = Load(size, frames, positions, deterministic, graphs)
            records.append(measure(loaded, front_end, request, wanted, machine=machine, facts=facts))
            note(f"{size} streams, {records[-1].mode}: {records[-1].total_frames_s:.1f} frames a second")
    outputs.deliver(records, f"legato bench batch: {model}")
