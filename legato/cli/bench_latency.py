"""`legato bench latency`: time from a request to its first audio (TTFA), stage by stage.

With --processes, each child process loads the model again and therefore measures a cold request.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.bench_output import Outputs, output_options
from legato.cli.bench_target import TRANSPORTS, BenchOptions, bench_options, load_target, open_transports
from legato.cli.model_options import ModelOptions
from legato.cli.terminal import note
from legato.errors import GenerationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from legato.bench.records import RequestRecord

EPILOG = """\b
Examples:
  legato bench latency                                        the voice in this package, all three transports
  legato bench latency --processes 5 --html latency.html      five cold starts, five times as many warm requests
  legato bench latency --model 0.6B-CustomVoice --packet-frames 4 --max-frames 16 --transport in-process
  legato bench latency --transport websocket --text-rate 50   text streamed at the rate of an LLM
  legato bench latency --records before.jsonl                 save the records for `legato bench compare`

\b
Reading the tables
  The stages are contiguous and sum to the time to first audio; any remainder is "unaccounted".
  request               client call until the engine has the request: connection, parsing, reference recording
  input wait, queue     wait for enough text; wait for a free slot
  prefill .. codec      the model: prompt, first code, first frame, rest of the first packet, its samples
  encode and transport  samples in the engine until bytes at the client
  playout               bytes until playback starts (--prebuffer-ms)
  "First audible sample" is later than the first audio if speech begins with silence.
  Cold: the first request of a process after loading, including one-time costs.

Client, server and engine run in one process and use the same clock.
"""


@click.command(epilog=EPILOG, short_help="Time to first audio, stage by stage.")
@bench_options
@click.option(
    "--transport",
    "transports",
    type=click.Choice(TRANSPORTS),
    multiple=True,
    help="Transport of the requests; repeatable.  [default: all three]",
)
@click.option(
    "--requests", type=click.IntRange(min=1), default=12, show_default=True, help="Measured requests per transport."
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Warm-up requests per transport (not measured).",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Repeat the benchmark in this many new processes.",
)
@output_options()
@click.pass_context
def latency(
    context: click.Context,
    model_options: ModelOptions,
    options: BenchOptions,
    outputs: Outputs,
    transports: tuple[str, ...],
    requests: int,
    warm_up: int,
    processes: int,
) -> None:
    """Send one request after another to MODEL and measure the stages of the time to first audio."""
    from legato.bench.measure import Repetitions, measure_latency
    from legato.bench.side_costs import measure_side_costs

    names = transports or TRANSPORTS
    options.check_transports(names)
    records: list[DataclassInstance] = []
    if processes > 1:
        records += run_processes(context, processes)
    else:
        with (
            load_target(model_options, options, max_num_seqs=1, synchronized=True) as target,
            open_transports(target, names) as opened,
        ):
            workload = options.workload(target.model_info.kind)
            for record in measure_latency(target, opened, workload, Repetitions(requests, warm_up)):
                note(request_line(record))
                records.append(record)
            records += measure_side_costs(target, workload, requests, time.monotonic)
    outputs.write(records, f"legato bench latency: {model_options.model}")


def request_line(record: RequestRecord) -> str:
    """One line about a finished request."""
    request = record.request
    head = f"{request.transport}, {'cold' if request.cold else 'warm'}, request {request.number}: {record.outcome}"
    if record.audio is None:
        return f"{head} {record.error_code}"
    return f"{head}, playback start {record.audio.first_sound_ms:.0f} ms, {record.audio.frames} frames"


def run_processes(context: click.Context, processes: int) -> Iterator[DataclassInstance]:
    """Run the same command in new processes, one after another; yields the records of all."""
    from legato.bench.jsonl import read_lines
    from legato.bench.records import RECORD_TYPES

    for run in range(processes):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "records.jsonl"
            overrides = {"processes": 1, "run": run, "records": file, "json_file": None, "html": None}
            arguments = rebuild_arguments(context, overrides)
            note(f"process {run + 1} of {processes}")
            done = subprocess.run(
                [sys.executable, "-m", "legato", "bench", "latency", *arguments], stdout=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                raise GenerationError(
                    f"process {run + 1} failed with exit code {done.returncode}; its messages are above"
                )
            yield from read_lines(file, RECORD_TYPES)


def rebuild_arguments(context: click.Context, overrides: dict[str, object]) -> list[str]:
    """The arguments that `context` was parsed from, with the values in `overrides`; None omits an option."""
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = overrides.get(name, context.params.get(name))
        if value is None:
            continue
        if isinstance(parameter, click.Argument):
            arguments.append(str(value))
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            if value == parameter.flag_value:
                arguments.append(parameter.opts[0])
        elif parameter.multiple and isinstance(value, tuple):
            for item in value:
                arguments += [parameter.opts[0], str(item)]
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            arguments += [parameter.opts[0], text]
    return arguments
