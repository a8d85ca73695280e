"""`legato quantize`: write a checkpoint with int8 or int4 weights, or measure the quantization error.

Holds no state; `legato.weights.quantized_checkpoint` writes and `legato.verify.predictor` measures.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from legato.cli.loading import locate_model, set_threads
from legato.cli.model_options import model_option
from legato.cli.options import renamed_option
from legato.cli.terminal import note
from legato.config.quantization import INT8, NONE, STORED

EPILOG = """\b
Examples:
  legato quantize 0.6B-CustomVoice ./cv-int8
  legato quantize --model ./checkpoint ./checkpoint-int4 --quant int4
  legato quantize --model embedded --compare-positions 100
  legato say "Hello." --model ./cv-int8

The codec (speech tokenizer) is not quantized. `legato say --quant int8` quantizes in the same way while loading, which
takes a few seconds each time. docs/quantization.md describes the effect on the output.
"""


@click.command(epilog=EPILOG, short_help="Write an int8 or int4 checkpoint, or measure quantization error.")
@click.argument("arguments", nargs=-1, metavar="[MODEL] [DST]")
@model_option(
    default=None, help_text="Model to quantize, instead of the argument MODEL: a folder, a hub id, or embedded."
)
@click.option("--quant", type=click.Choice(STORED), default=INT8, show_default=True, help="Format of the weights.")
@renamed_option(
    "--compare-positions",
    "--changes",
    "compare_positions",
    type=click.IntRange(min=1),
    metavar="POSITIONS",
    help="Compare the logits with those of the float32 model at this many positions of fixed inputs, and print the "
    "error of each codebook.  [default: off]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="CPU threads for --compare-positions.  [default: the physical cores available to this process]",
)
def quantize(
    arguments: tuple[str, ...], model: str | None, quant: str, compare_positions: int | None, threads: int | None
) -> None:
    """Quantize the talker and code predictor of MODEL and write the checkpoint to DST, a new or empty folder."""
    model, folder = choose_paths(arguments, model)
    if folder is None and compare_positions is None:
        raise click.UsageError("give DST, the folder to write, or --compare-positions, to measure the error")
    source = locate_model(model)
    if folder is not None:
        from legato.weights.quantized_checkpoint import write_quantized

        started_s = time.monotonic()
        written = write_quantized(source, folder, quant)
        note(f"wrote {folder}: {quant}, {written / 2**20:.0f} MiB of weights, {time.monotonic() - started_s:.1f} s")
    if compare_positions is not None:
        set_threads(threads)
        print_logit_errors(source, quant, compare_positions)


def choose_paths(arguments: tuple[str, ...], model: str | None) -> tuple[str, Path | None]:
    """Model and output folder from `[MODEL] [DST]`. With --model, the only argument is DST."""
    rest = list(arguments)
    if model is None:
        if not rest:
            raise click.UsageError("give the model: legato quantize MODEL DST, or --model MODEL")
        model = rest.pop(0)
    if len(rest) > 1:
        raise click.UsageError(f"unexpected argument {rest[1]!r}: give MODEL and DST, or --model and DST")
    if not rest:
        return model, None
    folder = Path(rest[0])
    if folder.is_file():
        raise click.UsageError(f"DST {str(folder)!r} is a file, not a folder")
    return model, folder


def print_logit_errors(source: Path, quant: str, positions: int) -> None:
    """Print the logit error of each codebook, and the mean."""
    from legato.backends.select import load_backend
    from legato.verify.predictor import measure_quantization_error
    from legato.verify.target import QUICK, Target

    backends = [load_backend(source, quant=mode, keep_reference=True) for mode in (NONE, quant)]
    exact, quantized = (Target.of(backend, QUICK, seed=0) for backend in backends)
    note(quantized.model.quant_note)
    click.echo("codebook          logit error    top-1 agreement")
    errors = measure_quantization_error(exact, quantized, positions)
    for each in errors:
        click.echo(f"{each.codebook:8d}  {each.error:19.4f}  {each.agreement:17.3f}")
    mean_error = sum(each.error for each in errors) / len(errors)
    mean_agreement = sum(each.agreement for each in errors) / len(errors)
    click.echo(f"{'all':>8}  {mean_error:19.4f}  {mean_agreement:17.3f}")
