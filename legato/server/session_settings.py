"""The settings of a session, checked before anything is spoken with them. Owns nothing; knows no dialect."""

from __future__ import annotations

from legato.engine.resolve import SpeechRequest
from legato.errors import UnsupportedError
from legato.server.state import ServerState
from legato.session.playback import PlaybackLimits
from legato.text.prompt import Instructions, instructions, resolve_language


def limits_of(
    state: ServerState, request: SpeechRequest, *, buffer_ms: int, lead_ms: int = 0, start_ms: int = 0
) -> PlaybackLimits:
    """How far ahead a session may run; `InputError` where the buffer cannot hold what it must."""
    return PlaybackLimits(
        sample_rate_hz=state.tts.sample_rate_hz,
        frame_samples=state.tts.model.config.codec.frame_samples,
        buffer_ms=buffer_ms,
        lead_ms=lead_ms,
        start_ms=start_ms,
        packet_frames=max(request.packet_frames),
    )


def check_request(state: ServerState, request: SpeechRequest) -> None:
    """Refuse now what the engine would refuse when the first utterance is opened, as far as that costs nothing."""
    config = state.tts.model.config
    resolve_language(config.talker, request.language, request.voice)
    if request.speed != 1.0 and not state.tts.changes_speed:
        raise UnsupportedError(f"a {config.kind} model speaks at its own speed; leave it at 1", field="speed")
    if request.instruct and instructions(config) is Instructions.REFUSED:
        raise UnsupportedError(f"a {config.kind} checkpoint takes no instruction", field="instruct")
