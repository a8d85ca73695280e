"""`legato models`: list the known checkpoints and which of them are on this machine.

Holds the table of official checkpoints. Makes no network request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from legato.cli.terminal import note, print_table

EPILOG = """\b
Examples:
  legato models
  legato say "Hello." --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice --voice ryan
  legato say "Hello." --model 0.6B-CustomVoice --voice ryan      short form
  legato say "Hello." --model /data/checkpoints/my-voice

A hub id is downloaded to the huggingface_hub cache when it is first used. Any folder in the official layout works too,
including fine-tuned checkpoints; `legato random-checkpoint` writes one with random weights.
"""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One official checkpoint. `gigabytes` is the size of a full download."""

    hub_id: str
    kind: str
    voices: str
    gigabytes: float


KNOWN = (
    KnownModel("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "CustomVoice", "nine built in", 2.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "CustomVoice", "nine built in, --instruct", 4.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", "VoiceDesign", "described with --instruct", 4.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "Base", "cloned with --clone", 2.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "Base", "cloned with --clone", 4.5),
)


@click.command(epilog=EPILOG, short_help="List the models that can be loaded.")
def models() -> None:
    """List the checkpoints that can be loaded, and which of them are on this machine."""
    print_table(("model", "kind", "voices", "size", "local copy"), model_rows())
    note("a folder with a checkpoint in the official layout can also be used as a model")


def model_rows() -> list[tuple[str, str, str, str, str]]:
    """One row per model; the last column is its folder."""
    embedded = embedded_folder()
    size = f"{_folder_size_bytes(embedded) / 1e6:.0f} MB" if embedded else ""
    rows = [("embedded", "embedded", "English, built in", size, str(embedded) if embedded else "missing")]
    for known in KNOWN:
        local = local_folder(known.hub_id)
        rows.append(
            (known.hub_id, known.kind, known.voices, f"{known.gigabytes} GB", str(local) if local else "not downloaded")
        )
    return rows


def embedded_folder() -> Path | None:
    """The folder of the embedded voice, or None if the package was built without it."""
    from legato.errors import CheckpointError
    from legato.weights.hub import locate

    try:
        return locate("embedded")
    except CheckpointError:
        return None


def local_folder(hub_id: str) -> Path | None:
    """The folder in the huggingface_hub cache if the download is complete, else None. Makes no network request."""
    from huggingface_hub import try_to_load_from_cache

    from legato.weights.hub import missing_files

    config = try_to_load_from_cache(hub_id, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return None if missing_files(folder) else folder


def _folder_size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
