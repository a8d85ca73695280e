"""The whole product on a case: text into the engine, packets out, the codes noted on their way.

An engine lives for one case; the rows of a batch are its streams, at the same time. Knows no record.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.framing import PacketPolicy
from legato.engine.frontend import BpeFrontEnd
from legato.engine.handle import StreamHandle
from legato.engine.sequence import Sequence
from legato.engine.stream import StreamRequest
from legato.engine.voices import VoiceStore
from legato.errors import GenerationError
from legato.flow import FinishReason, Frame, Sampling, StreamId
from legato.models.voice import Voice
from parity import cases
from parity.subject import Subject

POSITIONS = 512
"""Of a slot: more than any case needs."""


@dataclass(slots=True)
class Spoken:
    """One row as the engine spoke it: frames in order, samples float32 [N], why it ended."""

    frames: list[Frame] = field(default_factory=list)
    packets: list[npt.NDArray[np.float32]] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        return np.concatenate(self.packets)

    @property
    def codes(self) -> npt.NDArray[np.int64]:
        """[T, Q]."""
        return np.array(self.frames, dtype=np.int64)


def speak(subject: Subject, case: cases.Case, sampling: Sampling) -> list[Spoken]:
    """Every row of the case, spoken at the same time by one engine, in packets of 1, 2, 4, 4, ... frames."""
    rows = len(case.rows)
    model = subject.model
    store = VoiceStore(model.decoder, model.encoder, model.speaker_encoder, limit_bytes=2**28)
    engine = Engine(
        model,
        BpeFrontEnd(subject.tokenizer),
        EngineConfig(streams=rows, kv_slots=rows, positions=POSITIONS),
        poison=True,
    )
    try:
        spoken = _note_frames(engine)
        handles = [engine.submit(_request(subject, store, case, row, sampling)) for row in case.rows]
        for handle, row in zip(handles, case.rows, strict=True):
            handle.append_text(row.text)
            handle.end_text()
        for handle in handles:
            _listen(handle, spoken.setdefault(handle.id, Spoken()))
        return [spoken[handle.id] for handle in handles]
    finally:
        engine.close()


def _request(
    subject: Subject, store: VoiceStore, case: cases.Case, row: cases.Row, sampling: Sampling
) -> StreamRequest:
    voices: tuple[Voice, ...] = ()
    if row.reference:
        voices = (store.voice(cases.reference_audio(row.reference), subject.row_tokens(row)["reference"]),)
    spec = subject.row_spec(row, whole=case.whole)
    packets = PacketPolicy((1, 2, 4))
    return StreamRequest(spec, sampling, seed=0, packets=packets, max_frames=case.tokens - 1, voices=voices)


def _note_frames(engine: Engine) -> dict[StreamId, Spoken]:
    """Have the engine's runner also note each frame it draws, by stream."""
    spoken: dict[StreamId, Spoken] = {}
    draw_frames = engine.runner.draw_frames

    def noted(sequences: Rows[Sequence]) -> list[Frame | GenerationError]:
        frames = draw_frames(sequences)
        for sequence, frame in zip(sequences, frames, strict=True):
            if not isinstance(frame, GenerationError):
                spoken.setdefault(sequence.stream, Spoken()).frames.append(frame)
        return frames

    engine.runner.draw_frames = noted  # type: ignore[method-assign]
    return spoken


def _listen(handle: StreamHandle, spoken: Spoken) -> None:
    for packet in handle:
        spoken.packets.append(packet.float32())
        if packet.finish_reason is not None:
            spoken.reasons.append(packet.finish_reason)
