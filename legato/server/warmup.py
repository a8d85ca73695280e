"""Speaking once before anybody listens, so that the first client does not pay for what happens only once.

Owns nothing. What is spoken is thrown away; a model that fails here never becomes ready, and the log says why.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np

from legato.api import CloneReference
from legato.engine.resolve import SpeechRequest
from legato.server.state import ServerState

log = logging.getLogger("legato.server")

_TEXT = "Ready."
_FRAMES = 6


async def warm_up(state: ServerState) -> None:
    """Speak a few frames, then be ready."""
    began_s = time.monotonic()
    if state.config.warm_up:
        try:
            asked = await _request(state)
            async with await state.bridge.open(asked, _TEXT) as stream:
                async for _packet in stream:
                    pass
        except Exception:
            log.exception("the model does not speak: this server will not become ready")
            raise
        log.info("warm after %.1f s", time.monotonic() - began_s)
    state.readiness.warm = True


async def _request(state: ServerState) -> SpeechRequest:
    """What a model of this kind needs to say anything."""
    asked = SpeechRequest(max_frames=_FRAMES)
    kind = state.tts.model.config.kind
    if kind == "voice_design":
        return replace(asked, instruct="A calm voice.")
    if kind == "base":
        rate_hz = state.tts.sample_rate_hz
        tone = 0.2 * np.sin(2 * np.pi * 150 / rate_hz * np.arange(2 * rate_hz)).astype(np.float32)
        clone = CloneReference(tone, "Ready.")
        return replace(asked, reference=await state.bridge.in_thread(state.tts.reference, clone))
    return asked
