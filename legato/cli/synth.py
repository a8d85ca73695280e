"""`legato synth`: a checkpoint with random weights in the official on-disk layout.

Owns nothing; `legato.models.synth` writes.
"""

from __future__ import annotations

from pathlib import Path

import click

from legato.cli.model_options import LoadingLine
from legato.cli.terminal import note
from legato.models.synth_kinds import LIKES

EPILOG = """\b
Examples:
  legato synth --like tiny-base DIR            a few MB, for trying things out
  legato synth --like 0.6B-CustomVoice DIR     the real size: can this machine hold and run it?
  legato say "Noise." --model DIR --max-frames 25

It speaks noise and never ends by itself, so give --max-frames. 0.6B takes about 2.5 GB of disk, 1.7B about 4.5 GB.
"""


@click.command(epilog=EPILOG, short_help="Write a random-weight checkpoint in the official layout.")
@click.option(
    "--like",
    required=True,
    metavar="KIND",
    type=click.Choice(tuple(LIKES), case_sensitive=False),
    help=f"Kind and size: {', '.join(LIKES)}.",
)
@click.option("--seed", default=0, show_default=True, help="The same seed writes the same files everywhere.")
@click.option("--codec-beside", is_flag=True, help="Put the speech tokenizer beside DIR instead of inside.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def synth(like: str, seed: int, codec_beside: bool, folder: Path) -> None:
    """Write a random-weight checkpoint like an official one into DIR, which must be new or empty."""
    from legato.models.synth import write_checkpoint

    shown = LoadingLine()
    try:
        write_checkpoint(like, folder, seed=seed, codec_inside=not codec_beside, progress=shown.show)
    finally:
        shown.clear()
    note(f"wrote {folder}, random weights like {like}")
