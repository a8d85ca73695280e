"""`legato bench steps`: one step of talker, code predictor and codec beside what the machine could do at most.

Owns nothing after it printed; the measuring is `legato.bench.steps`, `ceilings` and `overhead`.
"""

from __future__ import annotations

import click

from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.model_options import check_device, compute_options, quant_option, set_threads
from legato.cli.terminal import note
from legato.cli.verify import load_weights

EPILOG = """\b
Examples:
  legato bench steps                                  the voice in this package
  legato bench steps ./checkpoint --dtype bfloat16 --batches 1,8 --windows 1,4 --html steps.html

A limit is what the bytes and the products of a step take at the rates in the first table; `of limit` is the share of a
step's time that it has to take. Nothing else should run meanwhile.
"""


@click.command(epilog=EPILOG, short_help="Each step beside the machine's limits.")
@click.argument("model", default="embedded", metavar="[MODEL]")
@click.option(
    "--batches", callback=numbers("--batches"), default="1,2,4,8", show_default=True, help="Rows in one call."
)
@click.option(
    "--windows", callback=numbers("--windows"), default="1,4", show_default=True, help="Frames of a codec window."
)
@click.option("--context", type=click.IntRange(min=1), default=128, show_default=True, help="Positions behind a row.")
@click.option("--seconds", type=click.FloatRange(min=0.0), default=0.5, show_default=True, help="Time for each figure.")
@compute_options
@quant_option
@output_options()
def steps(
    model: str,
    batches: tuple[float, ...],
    windows: tuple[float, ...],
    context: int,
    seconds: float,
    outputs: Outputs,
    dtype: str,
    codec_dtype: str,
    device: str,
    threads: int | None,
    quant: str,
) -> None:
    """Talker, code predictor and codec, a step at a time, beside bytes, products and the machine's measured limits."""
    import torch

    from legato.bench.ceilings import measure_ceilings
    from legato.bench.device import settle_of
    from legato.bench.facts import model_facts, this_machine
    from legato.bench.overhead import measure_overhead
    from legato.bench.request import plain_request
    from legato.bench.steps import Sizes, limits_of, measure_steps
    from legato.bench.steps_records import CeilingsRecord, StepRecord, TurnRecord
    from legato.engine.frontend import front_end_of

    check_device(device)
    set_threads(threads)
    loaded = load_weights(model, device, dtype, codec_dtype, quant)
    facts, machine, settle = model_facts(model, loaded), this_machine(device), settle_of(loaded)
    ceilings = measure_ceilings(torch.device(device), settle)
    records: list[CeilingsRecord | StepRecord | TurnRecord] = [CeilingsRecord(machine, ceilings)]
    sizes = Sizes(tuple(map(int, batches)), tuple(map(int, windows)), context, seconds)
    for step in measure_steps(loaded, sizes, limits_of(loaded, ceilings), settle):
        records.append(StepRecord(machine, facts, step))
        note(f"{step.part}, {step.rows} rows, {step.window_frames} frames: {step.median_ms:.1f} ms")
    front_end = front_end_of(loaded)
    request = plain_request(loaded, front_end)
    for rows in sizes.batches if device.startswith("cpu") else ():
        turn = measure_overhead(loaded, front_end, request, rows)
        records.append(TurnRecord(machine, facts, turn))
        note(f"a turn of {rows} rows: {turn.turn_ms:.1f} ms, {turn.share:.0%} outside kernels")
    outputs.deliver(records, f"legato bench steps: {model}")
