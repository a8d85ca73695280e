"""Exceptions of Legato, in one hierarchy. Each class has a stable `code` for clients and logs.

A message states what is wrong, with the values, and how to fix it. The server maps codes to HTTP statuses.
"""

from __future__ import annotations

from typing import ClassVar


class LegatoError(Exception):
    """Base class of all Legato errors. `field` names the invalid input, "" if there is none."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InputError(LegatoError):
    """The request is invalid."""

    code = "invalid_request"


class UnspeakableTextError(InputError):
    """The text contains nothing that the model can speak."""

    code = "unspeakable_text"


class TextTooLongError(InputError):
    """The text, reference or frame limit exceeds `max_seq_len`; the message states the required positions."""

    code = "too_long"


class UnknownVoiceError(InputError):
    """Unknown voice or speaker; the message lists the valid ones."""

    code = "unknown_voice"


class UnknownLanguageError(InputError):
    """Unknown language; the message lists the valid ones."""

    code = "unknown_language"


class SamplingError(InputError):
    """A sampling parameter is out of range."""

    code = "invalid_sampling"


class ReferenceAudioError(InputError):
    """The reference audio cannot be used: unreadable, silent, too short or too long."""

    code = "invalid_reference_audio"


class UnsupportedError(InputError):
    """This model or installation does not support the request; the message names one that does."""

    code = "unsupported"


class CheckpointError(LegatoError):
    """A checkpoint is missing, incomplete or not supported."""

    code = "checkpoint"


class ConfigError(CheckpointError):
    """A key of the checkpoint's JSON is missing, has the wrong type, or has an unsupported value."""

    code = "checkpoint_config"


class TensorError(CheckpointError):
    """Tensors are missing, unexpected or have the wrong shape; the message names each."""

    code = "checkpoint_tensors"


class DownloadError(CheckpointError):
    """The checkpoint cannot be downloaded; the message says what to download and where to put it."""

    code = "checkpoint_download"


class StateError(LegatoError):
    """An operation is not allowed in the current state, for example an unexpected event or a stale lease."""

    code = "state"


class GenerationError(LegatoError):
    """Generation of one stream failed. Other streams are not affected."""

    code = "generation"


class BadCodeError(GenerationError):
    """A code is outside its codebook."""

    code = "bad_code"


class NonFiniteError(GenerationError):
    """NaN or infinity in logits or samples."""

    code = "non_finite"


class QueueFullError(LegatoError):
    """Too many streams are waiting; retry later."""

    code = "queue_full"


class EngineClosedError(LegatoError):
    """The engine was closed or its device failed. Active streams end with this error."""

    code = "engine_closed"
