"""Test clients for an engine with its thread and tiny models: requests, reading, and timeouts against hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.flow_control import UNLIMITED, FlowControl
from legato.engine.handle import StreamHandle
from legato.engine.packetizer import PacketPolicy
from legato.engine.stream import StreamRequest
from legato.text.segmenter import SegmentRule
from legato.types import PromptSpec, TextLayout, TextToken
from tests.engine.harness import LONG, WARM
from tests.engine.tiny import LetterTokenizer, tiny_backend

MakeEngine = Callable[..., Engine]
TIMEOUT_S = 60.0
TEXT = "a text of some length"


class LetterFrontEnd:
    """Front end whose tokens are letters."""

    segment_rule: SegmentRule = LONG
    ends_with_text = False
    supports_speed = False

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> LetterTokenizer:  # noqa: ARG002
        return LetterTokenizer()

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        return ()

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:  # noqa: ARG002
        return ()


def request(
    seed: int = 0, *, max_frames: int = 5, flow_control: FlowControl = UNLIMITED, packets: tuple[int, ...] = (1, 2)
) -> StreamRequest:
    spec = PromptSpec(language="auto", speaker="", layout=TextLayout.STREAMING)
    return StreamRequest(
        spec=spec,
        sampling=WARM,
        seed=seed,
        packets=PacketPolicy(packets),
        max_frames=max_frames,
        flow_control=flow_control,
    )


def speak(handle: StreamHandle, text: str = TEXT) -> StreamHandle:
    handle.append_text(text)
    handle.end_text()
    return handle


def read(handle: StreamHandle) -> bytes:
    return b"".join(packet.float32_le for packet in handle)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true."""
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "timeout"
        time.sleep(0.002)


def in_threads(*jobs: Callable[[], object]) -> None:
    """Run all jobs in parallel threads and wait. A hang fails the test."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # boundary: raised again in the test thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a client thread hangs"
    if errors:
        raise errors[0]


def tiny_engine(*, streams: int = 3, queue: int = 64, deterministic: bool = True, yield_s: float = 1.0) -> Engine:
    """An engine with tiny models. Its free slots are filled with NaN."""
    config = EngineConfig(
        max_num_seqs=streams,
        kv_slots=streams + 1,
        max_seq_len=128,
        max_queue=queue,
        deterministic=deterministic,
        yield_s=yield_s,
    )
    return Engine(tiny_backend(), LetterFrontEnd(), config, poison=True)
