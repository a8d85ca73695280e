"""Legato: exact streaming inference for Qwen3-TTS-class speech models.

`legato.load()` gives a `legato.Legato` that speaks; torch is imported then, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legato.api import CloneReference, Legato, Speech, VoiceInfo, load

__version__ = "0.1.0"
__all__ = ["CloneReference", "Legato", "Speech", "VoiceInfo", "load"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from legato import api

        value: object = getattr(api, name)
        return value
    raise AttributeError(f"module 'legato' has no attribute {name!r}")
