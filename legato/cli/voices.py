"""`legato voices`: the built-in voices and languages of a model, read from its config without loading its weights.

Owns nothing and knows no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from legato.cli.model_options import locate_chosen, model_option
from legato.cli.terminal import note, print_table

if TYPE_CHECKING:
    from legato.config.model import ModelConfig

EPILOG = """\b
Examples:
  legato voices
  legato voices -m Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice
  legato voices -m ./my-fine-tuned-checkpoint

Base models have no built-in voice, they clone one (`legato say --clone`); VoiceDesign models make one from words
(`legato say --instruct`).
"""


@click.command(epilog=EPILOG)
@model_option
def voices(model: str) -> None:
    """List a model's voices and languages."""
    from legato.config.checkpoint import read_model_config

    config = read_model_config(locate_chosen(model))
    rows = voice_rows(config)
    if rows:
        print_table(("voice", "speaks"), rows)
    else:
        note(f"{model} has no built-in voice: {WAYS.get(config.kind, 'it is of the kind ' + config.kind)}")
    ids = config.talker.language_ids
    if ids is not None:
        spoken = sorted(set(ids.languages) - set(config.talker.dialects.values()))
        note(f"languages: auto, {', '.join(spoken)}")


WAYS = {
    "base": "clone one with `legato say --clone REF --ref-text ...`",
    "voice_design": "describe one with `legato say --instruct ...`",
}


def voice_rows(config: ModelConfig) -> list[tuple[str, str]]:
    """Name and what is special about it, in the checkpoint's order."""
    spoken = "English" if config.kind == "embedded" else "any of the languages"
    dialects = config.talker.dialects
    return [
        (name, f"{dialects[name].replace('_', ' ')} for auto and Chinese" if name in dialects else spoken)
        for name in config.talker.speakers
    ]
