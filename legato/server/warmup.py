"""Warm-up: synthesize a short text at start-up, so that the first request does not pay one-time costs.

The audio is discarded. If synthesis fails, the server never becomes ready and the error is logged.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np

from legato.api import CloneReference
from legato.engine.request import SpeechRequest
from legato.server.bridge import Pool
from legato.server.state import ServerState

log = logging.getLogger("legato.server")

_TEXT = "Ready."
_FRAMES = 6


async def warm_up(state: ServerState) -> None:
    """Synthesize a few frames, then mark the model as ready."""
    started_s = time.monotonic()
    if state.config.warm_up:
        try:
            # It reads the checkpoint's files, for seconds with a large one: `/v1/models` then answers immediately.
            await state.bridge.in_thread(Pool.DISK, state.tts.fingerprint)
            request = await _warm_up_request(state)
            async with await state.bridge.open(request, _TEXT) as stream:
                async for _packet in stream:
                    pass
        except Exception:
            log.exception("warm-up of %s failed: this server will not become ready", state.config.model_id)
            state.readiness.warm_up_failed = True
            raise
        log.info("warm-up of %s finished in %.1f s", state.config.model_id, time.monotonic() - started_s)
    state.readiness.warm = True


async def _warm_up_request(state: ServerState) -> SpeechRequest:
    """A request with the fields that this kind of model requires: an instruction, a reference, or nothing."""
    request = SpeechRequest(max_frames=_FRAMES)
    kind = state.tts.model.config.kind
    if kind == "voice_design":
        return replace(request, instruct="A calm voice.")
    if kind == "base":
        rate_hz = state.tts.sample_rate_hz
        tone = 0.2 * np.sin(2 * np.pi * 150 / rate_hz * np.arange(2 * rate_hz)).astype(np.float32)
        clone = CloneReference(tone, "Ready.")
        return replace(request, reference=await state.bridge.in_thread(Pool.REFERENCE, state.tts.reference, clone))
    return request
