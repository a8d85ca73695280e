"""`legato models`: the checkpoints that Legato knows of and which of them are on this machine.

Owns the list that is shown. Asks nothing of the network.
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
  legato say "Hello." --model 0.6B-CustomVoice --voice ryan      the same, shorter
  legato say "Hello." --model /data/checkpoints/my-voice

A hub id is fetched when it is first used, into the cache of huggingface_hub. Any folder in the official layout works
too, fine-tuned ones included; `legato synth` makes one with random weights.
"""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One released checkpoint. `gigabytes` is what a full download takes."""

    hub_id: str
    kind: str
    voices: str
    gigabytes: float


KNOWN = (
    KnownModel("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "CustomVoice", "nine built in", 2.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "CustomVoice", "nine built in, --instruct", 4.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", "VoiceDesign", "made from --instruct", 4.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "Base", "cloned with --clone", 2.5),
    KnownModel("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "Base", "cloned with --clone", 4.5),
)


@click.command(epilog=EPILOG, short_help="List the models that can be loaded, and which are here.")
def models() -> None:
    """List the checkpoints that can be loaded, and what is on this machine."""
    print_table(("model", "kind", "voices", "size", "here"), model_rows())
    note("a folder with a checkpoint of the same layout is a model too")


def model_rows() -> list[tuple[str, str, str, str, str]]:
    """One row a model; the last column says where it is."""
    embedded = embedded_folder()
    size = f"{_bytes_of(embedded) / 1e6:.0f} MB" if embedded else ""
    rows = [("embedded", "embedded", "English, built in", size, str(embedded) if embedded else "missing")]
    for known in KNOWN:
        local = local_folder(known.hub_id)
        rows.append(
            (known.hub_id, known.kind, known.voices, f"{known.gigabytes} GB", str(local) if local else "not fetched")
        )
    return rows


def embedded_folder() -> Path | None:
    """The folder of the voice in this package, or None where the package was built without it."""
    from legato.errors import CheckpointError
    from legato.models.locate import locate

    try:
        return locate("embedded")
    except CheckpointError:
        return None


def local_folder(hub_id: str) -> Path | None:
    """The complete copy in the hub's cache, or None. Asks nothing of the network."""
    from huggingface_hub import try_to_load_from_cache

    from legato.models.locate import missing_files

    config = try_to_load_from_cache(hub_id, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return None if missing_files(folder) else folder


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
