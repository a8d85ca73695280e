"""Steps beside the machine's limits, as tables and a plot of a report. Owns and measures nothing.

One table a model and setting, in the order of the records, so that two runs in one report stand below each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from legato.bench.facts import ModelFacts
from legato.bench.grid import Grid
from legato.bench.page import Plot
from legato.bench.plot import stacked_bars
from legato.bench.steps_records import CeilingsRecord, Overhead, Step, StepRecord, TurnRecord

_MB, _G = 1e6, 1e9
_STEP_HEADINGS = (
    *("part", "rows", "frames", "ms", "p10", "p90", "frames/s", "MB", "GFLOP"),
    *("by memory ms", "by products ms", "of limit"),
)
_STEP_NOTE = (
    "One call for all rows. MB and GFLOP are what a step must move and multiply at least; at the machine's rates that "
    "takes the next two columns. Of limit: the share of the time that a step has to take. Draws are inside the others."
)
_TURN_NOTE = (
    "One turn of the engine, a frame for each row, codec included. Products and other arithmetic are the models' "
    "kernels; copies, draws, and the host (Python, dispatch, scheduling) are outside."
)


def steps_chapter(records: Sequence[object]) -> Iterator[Grid | Plot]:
    """Everything that `legato bench steps` wrote."""
    yield from ceilings_grids([record for record in records if isinstance(record, CeilingsRecord)])
    yield from step_grids([record for record in records if isinstance(record, StepRecord)])
    turns = [record for record in records if isinstance(record, TurnRecord)]
    yield from turn_plots(turns)
    yield from turn_grids(turns)


def ceilings_grids(records: Sequence[CeilingsRecord]) -> Iterator[Grid]:
    """What the machine can do at most."""
    for record in records:
        rows = [
            (f"read {each.set_mib} MiB over and over", f"{each.bytes_s / _G:.1f} GB/s")
            for each in record.ceilings.reads
        ]
        rows += [(f"multiply in {each.dtype}", f"{each.flops_s / _G:.0f} GFLOP/s") for each in record.ceilings.matrix]
        threads = f"{record.machine.threads} {'thread' if record.machine.threads == 1 else 'threads'}"
        title = f"Limits of this machine, {threads} on {record.machine.device}"
        yield Grid(title, ("limit", "measured"), tuple(rows))


def step_grids(records: Sequence[StepRecord]) -> Iterator[Grid]:
    """Each step beside its limits."""
    for model in dict.fromkeys(record.model for record in records):
        rows = tuple(_step_row(record.step) for record in records if record.model == model)
        yield Grid(f"Steps of {_called(model)}", _STEP_HEADINGS, rows, _STEP_NOTE)


def turn_grids(records: Sequence[TurnRecord]) -> Iterator[Grid]:
    """Where a turn goes."""
    headings = ("rows", "turn ms", "products", "other arithmetic", "copies", "draws", "host", "outside kernels")
    for model in dict.fromkeys(record.model for record in records):
        rows = tuple(_turn_row(record.turn) for record in records if record.model == model)
        yield Grid(f"Where a turn of {_called(model)} goes", headings, rows, _TURN_NOTE)


def turn_plots(records: Sequence[TurnRecord]) -> Iterator[Plot]:
    """The same as bars."""
    if records:
        names = [f"{record.model.name}, {record.turn.rows} rows" for record in records]
        parts = [
            (name, [getattr(record.turn, f"{field}_ms") for record in records])
            for field, name in (
                *(("products", "products"), ("arithmetic", "other arithmetic")),
                *(("copies", "copies"), ("draws", "draws"), ("host", "host")),
            )
        ]
        yield Plot("Where a turn goes", stacked_bars(names, parts, title="a turn, ms", unit="ms"))


def _step_row(step: Step) -> tuple[str, ...]:
    times = (step.median_ms, step.p10_ms, step.p90_ms, step.frames_s)
    shown = (step.part, str(step.rows), str(step.window_frames), *(f"{each:.1f}" for each in times))
    if not step.weight_bytes:
        return (*shown, *("",) * (len(_STEP_HEADINGS) - len(shown)))
    moved, made = (step.weight_bytes + step.state_bytes) / _MB, step.flops / _G
    limits = (f"{step.memory_limit_ms:.1f}", f"{step.arithmetic_limit_ms:.1f}", f"{step.limit_ms / step.median_ms:.0%}")
    return (*shown, f"{moved:.0f}", f"{made:.2f}", *limits)


def _turn_row(turn: Overhead) -> tuple[str, ...]:
    parts = (turn.products_ms, turn.arithmetic_ms, turn.copies_ms, turn.draws_ms, turn.host_ms)
    shown = (f"{part:.1f} ({part / turn.turn_ms:.0%})" for part in parts)
    return (str(turn.rows), f"{turn.turn_ms:.1f}", *shown, f"{turn.share:.0%}")


def _called(model: ModelFacts) -> str:
    """The model and its number formats."""
    quantised = "" if model.quantisation == "none" else f", {model.quantisation}"
    return f"{model.name} ({model.talker_dtype}{quantised}, codec {model.codec_dtype})"
