"""`legato bench memory`: memory of a serving process with all of its slots in use.

Holds no state; `legato.bench.memory` measures.
"""

from __future__ import annotations

from importlib import import_module

import click

from legato.cli.bench_output import Outputs, output_options
from legato.cli.loading import load_weights, prepare_device
from legato.cli.model_options import (
    ModelOptions,
    cuda_graphs_option,
    max_num_seqs_option,
    max_seq_len_option,
    model_options,
)
from legato.cli.serve import require_server
from legato.cli.terminal import note

EPILOG = """\b
Examples:
  legato bench memory                                     the voice in this package, 8 streams
  legato bench memory --model ./checkpoint --max-num-seqs 8 --max-seq-len 2048 --quant int8

Private memory cannot be evicted by the system; pages of mapped weights can be evicted and read again. The first line is
the program: interpreter, libraries and server. Requires Linux, or CUDA, where device memory is reported.
"""


@click.command(epilog=EPILOG, short_help="Memory with all slots in use.")
@model_options(positional=True)
@max_num_seqs_option(8, help_text="Number of concurrent streams.", old="--streams")
@max_seq_len_option(2048)
@click.option(
    "--frames", type=click.IntRange(min=1), default=8, show_default=True, help="Frames to generate per stream."
)
@cuda_graphs_option
@output_options()
def memory(
    model_options: ModelOptions,
    max_num_seqs: int,
    max_seq_len: int,
    frames: int,
    outputs: Outputs,
    cuda_graphs: bool,
) -> None:
    """Measure the memory of a serving process: program, weights, KV slots, and streams in all slots."""
    from legato.bench.memory import measure_memory

    require_server("this benchmark")
    prepare_device(model_options)
    import_module("legato.server.app")  # part of the program's memory, which is measured before the model is loaded
    records = []
    for record in measure_memory(
        lambda: load_weights(model_options),
        model_options.model,
        model_options.device,
        streams=max_num_seqs,
        max_seq_len=max_seq_len,
        frames=frames,
        cuda_graphs=cuda_graphs,
    ):
        records.append(record)
        note(f"{record.stage}: {record.private_bytes / 2**20:.0f} MiB private")
    outputs.write(records, f"legato bench memory: {model_options.model}")
