"""`legato bench steps`: time of one talker, code predictor and codec step, compared with the machine's roofline.

Holds no state; `legato.bench.steps`, `roofline` and `overhead` measure.
"""

from __future__ import annotations

import click

from legato.cli.bench_output import Outputs, numbers, output_options
from legato.cli.loading import load_weights, prepare_device
from legato.cli.model_options import ModelOptions, model_options
from legato.cli.terminal import note

EPILOG = """\b
Examples:
  legato bench steps                                  the voice in this package
  legato bench steps --model ./checkpoint --dtype bfloat16 --batches 1,8 --windows 1,4 --html steps.html

The limit of a step is the time for its memory traffic and its arithmetic at the rates in the first table (roofline).
`of limit` is the limit divided by the measured time. Measure on an idle machine.
"""


@click.command(epilog=EPILOG, short_help="Step times against the machine's limits.")
@model_options(positional=True)
@click.option(
    "--batches",
    callback=numbers("--batches"),
    default="1,2,4,8",
    show_default=True,
    help="Batch sizes (rows per call) to measure.",
)
@click.option(
    "--windows", callback=numbers("--windows"), default="1,4", show_default=True, help="Frames per codec window."
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Context length: positions in the KV cache of each row.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0),
    default=0.5,
    show_default=True,
    help="Seconds to spend on each measurement.",
)
@output_options()
def steps(
    model_options: ModelOptions,
    batches: tuple[float, ...],
    windows: tuple[float, ...],
    context: int,
    seconds: float,
    outputs: Outputs,
) -> None:
    """Measure talker, code predictor and codec steps, and compare them with the roofline of this machine."""
    import torch

    from legato.bench.environment import model_info, synchronize_fn, this_machine
    from legato.bench.overhead import measure_engine_step
    from legato.bench.records import EngineStepRecord, RooflineRecord, StepRecord
    from legato.bench.roofline import measure_roofline
    from legato.bench.steps import StepSizes, measure_steps, step_limits
    from legato.bench.workload import plain_request
    from legato.engine.frontend import create_front_end

    prepare_device(model_options)
    backend, device = load_weights(model_options), model_options.device
    info, machine, synchronize = (
        model_info(model_options.model, backend),
        this_machine(device),
        synchronize_fn(backend.model),
    )
    roofline = measure_roofline(torch.device(device), synchronize)
    records: list[RooflineRecord | StepRecord | EngineStepRecord] = [RooflineRecord(machine, roofline)]
    sizes = StepSizes(tuple(map(int, batches)), tuple(map(int, windows)), context, seconds)
    for step in measure_steps(backend, sizes, step_limits(backend, roofline), synchronize):
        records.append(StepRecord(machine, info, step))
        note(f"{step.part}, {step.rows} rows, {step.window_frames} frames: {step.median_ms:.1f} ms")
    front_end = create_front_end(backend.model)
    request = plain_request(backend.model, front_end)
    for rows in sizes.batches if device.startswith("cpu") else ():
        engine_step = measure_engine_step(backend, front_end, request, rows)
        records.append(EngineStepRecord(machine, info, engine_step))
        note(f"engine step, {rows} rows: {engine_step.step_ms:.1f} ms, {engine_step.overhead:.0%} outside kernels")
    outputs.write(records, f"legato bench steps: {model_options.model}")
