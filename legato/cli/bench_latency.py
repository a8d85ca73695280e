"""`legato bench latency`: where the time between a request and its first sound goes, stage by stage.

Owns the processes of repeated runs, each of which loads the model anew and so has a cold request of its own.
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
from legato.cli.bench_subject import TRANSPORTS, BenchOptions, bench_options, subject, ways
from legato.cli.terminal import note
from legato.errors import GenerationError, InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from legato.bench.records import RequestRecord

EPILOG = """\b
Examples:
  legato bench latency                                        the voice in this package, all three ways
  legato bench latency --processes 5 --html latency.html      five cold starts, five times as many warm requests
  legato bench latency 0.6B-CustomVoice --packet-frames 4 --max-frames 16 --transport in-process
  legato bench latency --transport websocket --text-rate 50   text as a language model writes it
  legato bench latency --records before.jsonl                 then change something, and `legato bench compare`

\b
How to read it
  The stages follow one another without a gap and add up to the first sound; what they leave is "unaccounted".
  request               the client's call until the engine has it: connection, parsing, a clone's recording
  input wait, queue     enough text read; a slot free
  prefill .. codec      the model's own: prompt, first code, first frame, the rest of the first packet, its samples
  encode and transport  samples in the engine until bytes at the client
  playout               bytes until the listener starts (--start-ms)
  "First audible sample" comes later than the first sound where speech begins with silence.
  Cold is the first request of a process, after loading: what happens only once is in it.

Client, server and engine run in this one process and read one clock.
"""


@click.command(epilog=EPILOG, short_help="From the request to the first sound, stage by stage.")
@bench_options
@click.option(
    "--transport",
    "transports",
    type=click.Choice(TRANSPORTS),
    multiple=True,
    help="A way to ask; repeatable.  [default: all three]",
)
@click.option("--requests", type=click.IntRange(min=1), default=12, show_default=True, help="That count, each way.")
@click.option("--warm-up", type=click.IntRange(min=0), default=2, show_default=True, help="That do not, each way.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Whole runs, anew each.")
@output_options()
@click.pass_context
def latency(
    context: click.Context,
    options: BenchOptions,
    outputs: Outputs,
    transports: tuple[str, ...],
    requests: int,
    warm_up: int,
    processes: int,
) -> None:
    """Ask one request after the other of MODEL and say where the time until the first sound went."""
    from legato.bench.asides import measure_asides
    from legato.bench.latency import Repetitions, measure_latency

    names = transports or TRANSPORTS
    if options.text_rate and "http" in names:
        raise InputError(
            "HTTP takes the whole text: with --text-rate give --transport in-process or websocket", field="text-rate"
        )
    records: list[DataclassInstance] = []
    if processes > 1:
        records += repeated(context, processes)
    else:
        with subject(options, slots=1, settled=True) as measured, ways(measured, names) as asked:
            workload = options.workload(measured.facts.kind)
            for record in measure_latency(measured, asked, workload, Repetitions(requests, warm_up)):
                note(told(record))
                records.append(record)
            records += measure_asides(measured, workload, requests, time.monotonic)
    outputs.deliver(records, f"legato bench latency: {options.model}")


def told(record: RequestRecord) -> str:
    """One request as it comes."""
    asked = record.asked
    head = f"{asked.transport}, {'cold' if asked.cold else 'warm'}, request {asked.number}: {record.outcome}"
    sounds = [f", first sound {sound.first_sound_ms:.0f} ms, {sound.frames} frames" for sound in record.sounds]
    return head + "".join(sounds or [f" {record.error_code}"])


def repeated(context: click.Context, processes: int) -> Iterator[DataclassInstance]:
    """The same command in processes of its own, one after the other; yields the records of all."""
    from legato.bench.jsonl import read_lines
    from legato.bench.report import KINDS

    for run in range(processes):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "records.jsonl"
            changed = {"processes": 1, "run": run, "records": file, "json_file": None, "html": None}
            command = [sys.executable, "-m", "legato", "bench", "latency", *words(context, changed)]
            note(f"process {run + 1} of {processes}")
            done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise GenerationError(f"process {run + 1} ended with exit code {done.returncode}; its lines are above")
            yield from read_lines(file, KINDS)


def words(context: click.Context, changed: dict[str, object]) -> list[str]:
    """The command line of `context` again, with some values changed; None leaves an option out."""
    line: list[str] = []
    for parameter in context.command.params:
        value = changed.get(parameter.name or "", context.params.get(parameter.name or ""))
        if isinstance(parameter, click.Argument):
            line.append(str(value))
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            line += parameter.opts[:1] if value == parameter.flag_value else []
        elif parameter.multiple and isinstance(value, tuple):
            line += [word for each in value for word in (parameter.opts[0], str(each))]
        elif value is not None:
            line += [parameter.opts[0], ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return line
