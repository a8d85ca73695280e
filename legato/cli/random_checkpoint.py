"""`legato random-checkpoint`: write a checkpoint with random weights in the official on-disk layout.

Holds no state; `legato.weights.random_checkpoint` writes the files.
"""

from __future__ import annotations

from pathlib import Path

import click

from legato.cli.loading import LoadingLine
from legato.cli.options import renamed_option
from legato.cli.terminal import note
from legato.weights.random_configs import CHECKPOINT_KINDS

EPILOG = """\b
Examples:
  legato random-checkpoint --architecture tiny-base DIR            a few MB, for tests
  legato random-checkpoint --architecture 0.6B-CustomVoice DIR     full size, to test whether it fits this machine
  legato say "Noise." --model DIR --max-frames 25

The model generates noise and does not stop by itself: use --max-frames. 0.6B takes about 2.5 GB of disk space, 1.7B
about 4.5 GB.
"""


@click.command(epilog=EPILOG, short_help="Write a checkpoint with random weights.")
@renamed_option(
    "--architecture",
    "--like",
    "architecture",
    required=True,
    metavar="KIND",
    type=click.Choice(tuple(CHECKPOINT_KINDS), case_sensitive=False),
    help=f"Architecture and size of the model: {', '.join(CHECKPOINT_KINDS)}.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights; the same seed writes the same files.")
@click.option("--codec-beside", is_flag=True, help="Write the codec (speech tokenizer) next to DIR instead of inside.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def random_checkpoint(architecture: str, seed: int, codec_beside: bool, folder: Path) -> None:
    """Write a checkpoint with random weights in the layout of an official one to DIR, a new or empty folder."""
    from legato.weights.random_checkpoint import write_checkpoint

    progress = LoadingLine()
    try:
        write_checkpoint(architecture, folder, seed=seed, codec_inside=not codec_beside, progress=progress.show)
    finally:
        progress.clear()
    note(f"wrote {folder}: random weights, architecture {architecture}")
