"""`legato bench memory`: what a serving process keeps in memory with all of its slots in use.

Owns nothing after it printed; the measuring is `legato.bench.memory`.
"""

from __future__ import annotations

from importlib import import_module

import click

from legato.cli.bench_output import Outputs, output_options
from legato.cli.model_options import check_device, compute_options, graphs_option, quant_option, set_threads
from legato.cli.serve import require_server
from legato.cli.terminal import note
from legato.cli.verify import load_weights

EPILOG = """\b
Examples:
  legato bench memory                                     the voice in this package, 8 streams
  legato bench memory ./checkpoint --streams 8 --positions 2048 --quant int8

Private memory is what the system cannot drop; pages of mapped weights can be dropped and read again. The program is the
first line: interpreter, libraries and the server. Needs Linux, or CUDA, where the device's memory is told.
"""


@click.command(epilog=EPILOG, short_help="What all slots in use take.")
@click.argument("model", default="embedded", metavar="[MODEL]")
@click.option("--streams", type=click.IntRange(min=1), default=8, show_default=True, help="That speak at once.")
@click.option("--positions", type=click.IntRange(min=16), default=2048, show_default=True, help="Of a slot.")
@click.option("--frames", type=click.IntRange(min=1), default=8, show_default=True, help="Each stream speaks so many.")
@quant_option
@compute_options
@graphs_option
@output_options()
def memory(
    model: str,
    streams: int,
    positions: int,
    frames: int,
    outputs: Outputs,
    dtype: str,
    codec_dtype: str,
    quant: str,
    device: str,
    threads: int | None,
    graphs: bool,
) -> None:
    """What a serving process keeps in memory: program, weights, all positions of all slots, streams in all of them."""
    from legato.bench.memory import measure_memory

    require_server("this benchmark")
    check_device(device)
    set_threads(threads)
    import_module("legato.server.app")
    records = []
    for record in measure_memory(
        lambda: load_weights(model, device, dtype, codec_dtype, quant),
        model,
        device,
        streams=streams,
        positions=positions,
        frames=frames,
        graphs=graphs,
    ):
        records.append(record)
        note(f"{record.stage}: {record.private_bytes / 2**20:.0f} MiB private")
    outputs.deliver(records, f"legato bench memory: {model}")
