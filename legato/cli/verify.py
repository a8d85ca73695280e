"""`legato verify`: is streaming exact on this machine, with these weights? Errors and tolerances, no speed."""

from __future__ import annotations

import click

from legato.cli.model_options import locate_chosen, model_option, set_threads
from legato.cli.terminal import print_rich

EPILOG = """\b
Examples:
  legato verify                        the voice in this package
  legato verify -m ./checkpoint --frames 100
  legato verify --dtype float32 --dtype bfloat16

The oracle is the same decoder called once on all frames. Each claim has controls: the same check with a fault put in,
which must be caught. Exit code 1 if a claim does not hold or a control is not caught.
"""


@click.command(epilog=EPILOG, short_help="Check that streaming changes no sample.")
@model_option
@click.option(
    "--frames", type=click.IntRange(min=2), default=310, show_default=True, help="Length of the whole decode."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the codes and the random windows.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(("float32", "float64", "bfloat16")),
    default=("float32",),
    show_default=True,
    help="Number format to check; may be given several times.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: the physical cores]")
def verify(model: str, frames: int, seed: int, dtypes: tuple[str, ...], threads: int | None) -> int:
    """Check that windows, interleaving and reuse change no sample of the codec's output."""
    import torch

    from legato.models.load import load_model
    from legato.verify.codec import run_codec_checks
    from legato.verify.lines import check_table

    set_threads(threads)
    loaded = load_model(locate_chosen(model))
    chosen = [getattr(torch, name) for name in dtypes]
    lines = run_codec_checks(loaded.decoder, frames=frames, seed=seed, dtypes=chosen)
    click.echo(f"Streaming codec of {model}, {frames} frames", err=True)
    state_mib = loaded.decoder.fresh(1, torch.float32).row_bytes / 2**20
    click.echo(f"State of one stream: {state_mib:.2f} MiB in float32", err=True)
    print_rich(check_table(lines, ""))
    failed = [line for line in lines if not line.passed]
    click.echo(f"{len(lines) - len(failed)} of {len(lines)} checks passed")
    return 1 if failed else 0
