"""`legato quantize`: a checkpoint with 8- or 4-bit weights, which loads at once; or what such weights would change.

Owns nothing; `legato.models.quantized_checkpoint` writes and `legato.verify.rounding` measures.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from legato.cli.model_options import locate_chosen, set_threads
from legato.cli.terminal import note
from legato.config.quantization import INT8, NONE, STORED

EPILOG = """\b
Examples:
  legato quantize 0.6B-CustomVoice ./cv-int8
  legato quantize ./checkpoint ./checkpoint-int4 --quant int4
  legato quantize embedded --changes 100
  legato say "Hello." --model ./cv-int8

The speech tokenizer keeps its weights. `legato say --quant int8` rounds the same way while loading, which takes a few
seconds each time; docs/quantization.md says what rounding changes.
"""


@click.command(epilog=EPILOG, short_help="Write a checkpoint with 8- or 4-bit weights, or say what they change.")
@click.argument("source", metavar="SRC")
@click.argument("folder", metavar="[DST]", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--quant", type=click.Choice(STORED), default=INT8, show_default=True, help="Bits of a weight.")
@click.option(
    "--changes",
    type=click.IntRange(min=1),
    metavar="POSITIONS",
    help="Compare logits with those of float32 over so many positions of fixed inputs, and print them by codebook.",
)
@click.option("--threads", type=click.IntRange(min=1), help="For --changes.  [default: the physical cores]")
def quantize(source: str, folder: Path | None, quant: str, changes: int | None, threads: int | None) -> None:
    """Write SRC (a folder, a hub id, or embedded) with rounded weights into DST, which must be new or empty."""
    if folder is None and changes is None:
        raise click.UsageError("give DST, where to write, or --changes POSITIONS, to see what rounding changes")
    place = locate_chosen(source)
    if folder is not None:
        from legato.models.quantized_checkpoint import write_quantized

        began_s = time.monotonic()
        written = write_quantized(place, folder, quant)
        note(f"wrote {folder}: {quant}, {written / 2**20:.0f} MiB of weights, {time.monotonic() - began_s:.1f} s")
    if changes is not None:
        set_threads(threads)
        print_changes(place, quant, changes)


def print_changes(place: Path, quant: str, positions: int) -> None:
    """A line a codebook."""
    from legato.models.load import load_model
    from legato.verify.rounding import measure_changes
    from legato.verify.subject import QUICK, Subject

    exact, rounded = (Subject.of(load_model(place, quant=mode), QUICK, seed=0) for mode in (NONE, quant))
    note(rounded.model.quant_note)
    click.echo("codebook  error of the logits  same first choice")
    changes = measure_changes(exact, rounded, positions)
    for change in changes:
        click.echo(f"{change.codebook:8d}  {change.error:19.4f}  {change.agreement:17.3f}")
    count = len(changes)
    error, same = sum(each.error for each in changes) / count, sum(each.agreement for each in changes) / count
    click.echo(f"{'all':>8}  {error:19.4f}  {same:17.3f}")
