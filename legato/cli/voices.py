"""`legato voices`: list the built-in voices and languages of a model.

Reads only the config, not the weights. Holds no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from legato.cli.loading import locate_model
from legato.cli.model_options import model_option
from legato.cli.terminal import note, print_table

if TYPE_CHECKING:
    from legato.config.model import ModelConfig

EPILOG = """\b
Examples:
  legato voices
  legato voices -m Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice
  legato voices -m ./my-fine-tuned-checkpoint

Base models have no built-in voices: they clone one (`legato say --clone`). VoiceDesign models create one from a
description (`legato say --instruct`).
"""


NO_VOICE_REMEDIES = {
    "base": "clone one with `legato say --clone REF --ref-text ...`",
    "voice_design": "describe one with `legato say --instruct ...`",
}


@click.command(epilog=EPILOG, short_help="List the voices and languages of a model.")
@model_option()
def voices(model: str) -> None:
    """List the voices and languages of a model."""
    from legato.config.checkpoint import read_model_config

    config = read_model_config(locate_model(model))
    rows = voice_rows(config)
    if rows:
        print_table(("voice", "language"), rows)
    else:
        remedy = NO_VOICE_REMEDIES.get(config.kind, f"its kind is {config.kind}")
        note(f"{model} has no built-in voices: {remedy}")
    ids = config.talker.language_ids
    if ids is not None:
        languages = sorted(set(ids.languages) - set(config.talker.dialects.values()))
        note(f"languages: auto, {', '.join(languages)}")


def voice_rows(config: ModelConfig) -> list[tuple[str, str]]:
    """Name and language of each voice, in the checkpoint's order."""
    language = "English" if config.kind == "embedded" else "all of the model's languages"
    dialects = config.talker.dialects
    return [
        (name, f"{dialects[name].replace('_', ' ')} for auto and Chinese" if name in dialects else language)
        for name in config.talker.speakers
    ]
