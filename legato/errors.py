"""One tree of exceptions. Each class has a stable `code` (for clients and logs) and may name the `field` at fault.

Every message says what is wrong, with the values, and the way out. Knows nothing of HTTP: a server maps codes to
statuses.
"""

from __future__ import annotations

from typing import ClassVar


class LegatoError(Exception):
    """Root of all errors that Legato raises on purpose. `field` names the input at fault, "" where none is."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InputError(LegatoError):
    """The request cannot be served as it was asked."""

    code = "invalid_request"


class UnspeakableTextError(InputError):
    """Nothing in the text can be spoken by the chosen model."""

    code = "unspeakable_text"


class TextTooLongError(InputError):
    """The text, reference or frame limit does not fit; the message gives the numbers."""

    code = "too_long"


class UnknownVoiceError(InputError):
    """No such voice or speaker; the message lists the allowed ones."""

    code = "unknown_voice"


class UnknownLanguageError(InputError):
    """No such language; the message lists the allowed ones."""

    code = "unknown_language"


class SamplingError(InputError):
    """A sampling value is outside its range."""

    code = "invalid_sampling"


class ReferenceAudioError(InputError):
    """The reference audio cannot be used: unreadable, silent, too short or too long."""

    code = "invalid_reference_audio"


class UnsupportedError(InputError):
    """This model or build cannot do what was asked; the message says which one can."""

    code = "unsupported"


class CheckpointError(LegatoError):
    """A checkpoint is missing, incomplete or not one that this engine computes correctly."""

    code = "checkpoint"


class ConfigError(CheckpointError):
    """A key of the checkpoint's JSON is missing, mistyped, or has a value that is not supported."""

    code = "checkpoint_config"


class TensorError(CheckpointError):
    """Tensors are missing, left over or misshapen; the message names each."""

    code = "checkpoint_tensors"


class DownloadError(CheckpointError):
    """The checkpoint cannot be fetched; the message says what to fetch and where to put it."""

    code = "checkpoint_download"


class StateError(LegatoError):
    """An event that the state does not allow, a stale lease, a row of the wrong pool: the caller's fault or ours."""

    code = "state"


class GenerationError(LegatoError):
    """One sequence failed while it was generated; others are unharmed."""

    code = "generation"


class BadCodeError(GenerationError):
    """A code outside its codebook reached the codec."""

    code = "bad_code"


class NonFiniteError(GenerationError):
    """NaN or infinity in logits or samples."""

    code = "non_finite"


class QueueFullError(LegatoError):
    """Too many streams wait already; try again later."""

    code = "queue_full"


class EngineClosedError(LegatoError):
    """The engine was closed, or its device failed; streams that were under way end with this."""

    code = "engine_closed"
