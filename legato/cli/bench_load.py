"""`legato bench load`: what many clients at once get, as a closed loop or as arrivals at a rate.

Owns the loaded model for the time of the run.
"""

from __future__ import annotations

import click

from legato.cli.bench_latency import told
from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.bench_subject import TRANSPORTS, BenchOptions, bench_options, subject, ways
from legato.cli.terminal import note
from legato.errors import InputError

EPILOG = """\b
Examples:
  legato bench load                                    the voice in this package, 1, 3 and 6 clients at once
  legato bench load --at-once 1,2,4,8 --requests 32 --html load.html
  legato bench load --rates 0.5,1,2 --queue 2          arrivals a second; those that find no room are counted
  legato bench load --transport websocket --text-rate 50
  legato bench load 0.6B-CustomVoice --packet-frames 4 --at-once 1,3,6 --max-frames 16

\b
How to read it
  first packet        the engine's receipt of a request until its first samples exist, queueing included
  gap                 between one piece of sound and the next, at the client
  kept in real time   streams whose listener never ran dry; "dry ms" is how long the others waited in all
  real-time factor    seconds of work for each second of a stream's sound: below 1 keeps pace
  sound s/s           sound made in a second by all streams together
  rows                streams in one call of the talker, on average

In a closed loop each client asks again as soon as it was answered. With --rates clients come whether or not others are
still busy, so that a server which falls behind shows it. Texts, seeds and arrivals are the same on every run.
"""


@click.command(epilog=EPILOG, short_help="What many clients at once get.")
@bench_options
@click.option(
    "--at-once", callback=numbers("--at-once"), default="1,3,6", show_default=True, help="Clients of a closed loop."
)
@click.option("--rates", callback=numbers("--rates"), default="", help="Arrivals a second, instead of --at-once.")
@click.option("--transport", type=click.Choice(TRANSPORTS), default="http", show_default=True, help="The way to ask.")
@click.option("--requests", type=click.IntRange(min=1), default=18, show_default=True, help="At each level.")
@click.option("--slots", type=click.IntRange(min=1), help="Streams that speak at once.  [default: the most --at-once]")
@output_options()
def load(
    options: BenchOptions,
    outputs: Outputs,
    at_once: tuple[float, ...],
    rates: tuple[float, ...],
    transport: str,
    requests: int,
    slots: int | None,
) -> None:
    """Let many clients ask MODEL at once and say what each got."""
    from legato.bench.load import Clock, measure_load
    from legato.bench.observe import Setting

    if options.text_rate and transport == "http":
        raise InputError(
            "HTTP takes the whole text: with --text-rate give --transport in-process or websocket", field="text-rate"
        )
    if any(each != int(each) for each in at_once):
        raise click.BadParameter("clients come in whole numbers", param_hint="--at-once")
    closed = [Setting("closed", concurrency=int(each)) for each in at_once]
    settings = [Setting("open", rate_hz=rate) for rate in rates] or closed
    records = []
    width = slots or int(max(at_once, default=1))
    with subject(options, slots=width, settled=False) as measured, ways(measured, (transport,)) as asked:
        workload = options.workload(measured.facts.kind)
        for way in asked:
            for record in measure_load(measured, way, workload, settings, requests=requests, clock=Clock()):
                note(told(record))
                records.append(record)
    outputs.deliver(records, f"legato bench load: {options.model}")
