"""Legato: exact streaming inference for Qwen3-TTS-class speech models.

`legato.load()` returns a `legato.Legato`, which synthesizes speech. Names are imported on first use, so `import legato`
does not import torch or numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legato.api import CloneReference as CloneReference
    from legato.api import Legato as Legato
    from legato.api import Speech as Speech
    from legato.api import Stream as Stream
    from legato.api import Voice as Voice
    from legato.api import load as load
    from legato.config.engine import EngineConfig as EngineConfig
    from legato.errors import BadCodeError as BadCodeError
    from legato.errors import CheckpointError as CheckpointError
    from legato.errors import ConfigError as ConfigError
    from legato.errors import DownloadError as DownloadError
    from legato.errors import EngineClosedError as EngineClosedError
    from legato.errors import GenerationError as GenerationError
    from legato.errors import InputError as InputError
    from legato.errors import LegatoError as LegatoError
    from legato.errors import NonFiniteError as NonFiniteError
    from legato.errors import QueueFullError as QueueFullError
    from legato.errors import ReferenceAudioError as ReferenceAudioError
    from legato.errors import SamplingError as SamplingError
    from legato.errors import StateError as StateError
    from legato.errors import TensorError as TensorError
    from legato.errors import TextTooLongError as TextTooLongError
    from legato.errors import UnknownLanguageError as UnknownLanguageError
    from legato.errors import UnknownVoiceError as UnknownVoiceError
    from legato.errors import UnspeakableTextError as UnspeakableTextError
    from legato.errors import UnsupportedError as UnsupportedError
    from legato.types import FinishReason as FinishReason
    from legato.types import Packet as Packet
    from legato.types import SamplingParams as SamplingParams

__version__ = "0.2.0.dev0"

_API = ("CloneReference", "Legato", "Speech", "Stream", "Voice", "load")
_TYPES = ("FinishReason", "Packet", "SamplingParams")
_ERRORS = (
    "BadCodeError",
    "CheckpointError",
    "ConfigError",
    "DownloadError",
    "EngineClosedError",
    "GenerationError",
    "InputError",
    "LegatoError",
    "NonFiniteError",
    "QueueFullError",
    "ReferenceAudioError",
    "SamplingError",
    "StateError",
    "TensorError",
    "TextTooLongError",
    "UnknownLanguageError",
    "UnknownVoiceError",
    "UnspeakableTextError",
    "UnsupportedError",
)
_MODULE_OF = {
    **dict.fromkeys(_API, "legato.api"),
    **dict.fromkeys(_TYPES, "legato.types"),
    **dict.fromkeys(_ERRORS, "legato.errors"),
    "EngineConfig": "legato.config.engine",
}
_DEPRECATED = {"VoiceInfo": "legato.api"}

__all__ = sorted(_MODULE_OF)


if not TYPE_CHECKING:  # type checkers use the imports above, so they report unknown names

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name) or _DEPRECATED.get(name)
        if module is None:
            raise AttributeError(f"module 'legato' has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
