"""Clients of an engine with its thread, for tests: what they ask, how they read, and that they never hang.

Knows no test. The engine's parts are the tiny ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from legato.config.engine import EngineConfig
from legato.engine.demand import UNLIMITED, Demand
from legato.engine.engine import Engine
from legato.engine.framing import PacketPolicy
from legato.engine.handle import StreamHandle
from legato.engine.stream import StreamRequest
from legato.flow import PromptSpec, TextLayout, TextToken
from legato.models.load import LoadedModel
from legato.text.segment import SegmentRule
from tests.engine.harness import LONG, WARM
from tests.engine.tiny import LetterTrack, tiny_config, tiny_decoder, tiny_predictor, tiny_talker

MakeEngine = Callable[..., Engine]
PATIENCE_S = 60.0
TEXT = "a text of some length"


class LetterFrontEnd:
    """Letters for tokens."""

    segments: SegmentRule = LONG
    ends_with_track = False
    changes_speed = False

    def track(self, speaker: str, speed: float = 1.0) -> LetterTrack:  # noqa: ARG002
        return LetterTrack()

    def instruct(self, text: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        return ()

    def reference(self, transcript: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        return ()


def request(
    seed: int = 0, *, max_frames: int = 5, demand: Demand = UNLIMITED, packets: tuple[int, ...] = (1, 2)
) -> StreamRequest:
    spec = PromptSpec(language="auto", speaker="", layout=TextLayout.STREAMING)
    return StreamRequest(spec, WARM, seed, PacketPolicy(packets), max_frames, demand=demand)


def speak(handle: StreamHandle, text: str = TEXT) -> StreamHandle:
    handle.append_text(text)
    handle.end_text()
    return handle


def read(handle: StreamHandle) -> bytes:
    return b"".join(packet.float32_le for packet in handle)


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.002)


def in_threads(*jobs: Callable[[], object]) -> None:
    """Run all at once and wait; a hang is a failure."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # boundary: raised again in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a client hangs"
    if errors:
        raise errors[0]


def tiny_engine(*, streams: int = 3, queue: int = 64, deterministic: bool = True) -> Engine:
    """An engine whose free slots hold NaN."""
    config = EngineConfig(
        streams=streams, kv_slots=streams + 1, positions=128, queue=queue, deterministic=deterministic
    )
    model = LoadedModel(Path(), tiny_config(), tiny_talker(), tiny_predictor(), tiny_decoder(), None, None, None)
    return Engine(model, LetterFrontEnd(), config, poison=True)
