"""`legato bench load`: latency and throughput with concurrent clients, in a closed loop or at an arrival rate.

Loads the model and runs its engine while the benchmark runs.
"""

from __future__ import annotations

import click

from legato.cli.bench_latency import request_line
from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.bench_target import TRANSPORTS, BenchOptions, bench_options, load_target, open_transports
from legato.cli.model_options import ModelOptions, max_num_seqs_option
from legato.cli.options import renamed_option
from legato.cli.terminal import note

EPILOG = """\b
Examples:
  legato bench load                                    the voice in this package, 1, 3 and 6 concurrent clients
  legato bench load --concurrency 1,2,4,8 --requests 32 --html load.html
  legato bench load --rates 0.5,1,2 --max-queue 2      arrivals per second; refused requests are counted
  legato bench load --transport websocket --text-rate 50
  legato bench load --model 0.6B-CustomVoice --packet-frames 4 --concurrency 1,3,6 --max-frames 16

\b
Columns of the load table
  TTFA          from receipt of a request in the engine to its first samples, including the queue
  gap           time between two chunks of audio at the client
  no underrun   streams without an underrun; "underrun ms" is the total duration of all underruns
  RTF           processing time per second of a stream's audio; below 1 is faster than real time
  audio s/s     seconds of audio per second, all streams together
  batch         mean batch size of a talker step

In a closed loop each client sends its next request when the previous one has finished. With --rates (open loop)
requests arrive independently of the server's progress. Texts, seeds and arrival times are the same in every run.
"""


@click.command(epilog=EPILOG, short_help="Latency and throughput with concurrent clients.")
@bench_options
@renamed_option(
    "--concurrency",
    "--at-once",
    "concurrency",
    callback=numbers("--concurrency"),
    default="1,3,6",
    show_default=True,
    help="Numbers of concurrent clients to measure (closed loop).",
)
@click.option(
    "--rates",
    callback=numbers("--rates"),
    default="",
    help="Request rates per second to measure (open loop), instead of --concurrency.  [default: none]",
)
@click.option(
    "--transport", type=click.Choice(TRANSPORTS), default="http", show_default=True, help="Transport of the requests."
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=18,
    show_default=True,
    help="Requests per number of clients or per rate.",
)
@max_num_seqs_option(
    None, help_text="Maximum number of streams generated at the same time.  [default: the largest --concurrency]"
)
@output_options()
def load(
    model_options: ModelOptions,
    options: BenchOptions,
    outputs: Outputs,
    concurrency: tuple[float, ...],
    rates: tuple[float, ...],
    transport: str,
    requests: int,
    max_num_seqs: int | None,
) -> None:
    """Send requests to MODEL from concurrent clients and measure latency and throughput."""
    from legato.bench.measure import Clock, LoadPattern, measure_load

    options.check_transports((transport,))
    if any(clients != int(clients) for clients in concurrency):
        raise click.BadParameter("give whole numbers of clients", param_hint="--concurrency")
    patterns = [LoadPattern("closed", concurrency=int(clients)) for clients in concurrency]
    if rates:
        patterns = [LoadPattern("open", rate_hz=rate) for rate in rates]
    width = max_num_seqs or int(max(concurrency, default=1))
    records = []
    with (
        load_target(model_options, options, max_num_seqs=width, synchronized=False) as target,
        open_transports(target, (transport,)) as transports,
    ):
        workload = options.workload(target.model_info.kind)
        for each in transports:
            for record in measure_load(target, each, workload, patterns, requests=requests, clock=Clock()):
                note(request_line(record))
                records.append(record)
    outputs.write(records, f"legato bench load: {model_options.model}")
