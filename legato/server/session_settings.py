"""Validate the settings of a WebSocket or Wyoming session.

Errors are raised when the settings are sent, not when the first utterance uses them.
"""

from __future__ import annotations

from legato.engine.request import SpeechRequest
from legato.errors import UnsupportedError
from legato.server.state import ServerState
from legato.session.playback import PlaybackLimits
from legato.text.prompt import resolve_language
from legato.types import DEFAULT_PACKET_FRAMES


def limits_of(
    state: ServerState, request: SpeechRequest, *, buffer_ms: int, lead_ms: int = 0, start_ms: int = 0
) -> PlaybackLimits:
    """Flow control limits of a session. Raises `InputError` if the buffer is too small for its packets."""
    return PlaybackLimits(
        sample_rate_hz=state.tts.sample_rate_hz,
        frame_samples=state.tts.model.config.codec.frame_samples,
        buffer_ms=buffer_ms,
        lead_ms=lead_ms,
        start_ms=start_ms,
        packet_frames=max(request.packet_frames or DEFAULT_PACKET_FRAMES),
    )


def check_request(state: ServerState, request: SpeechRequest) -> None:
    """Raise the errors that the engine would raise for the first utterance, as far as no computation is needed."""
    config = state.tts.model.config
    resolve_language(config.talker, request.language, request.voice)
    if request.speed != 1.0 and not state.tts.supports_speed:
        raise UnsupportedError(
            f"a {config.kind} model cannot change its speed: use 1, not {request.speed:g}", field="speed"
        )
