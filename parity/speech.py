"""Runs a case through the whole engine: text in, packets out; also records the codes.

An engine lives for one case. The rows of a batch are concurrent streams.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.engine.frontend import BpeFrontEnd
from legato.engine.handle import StreamHandle
from legato.engine.packetizer import PacketPolicy
from legato.engine.sequence import Sequence
from legato.engine.stream import StreamRequest
from legato.engine.voice_cache import VoiceCache
from legato.errors import GenerationError
from legato.models.voice import ClonedVoice
from legato.types import FinishReason, Frame, SamplingParams, StreamId
from parity import cases
from parity.legato_side import ParityModel

MAX_SEQ_LEN = 512
"""Talker positions per KV slot: more than any case needs."""


@dataclass(slots=True)
class EngineOutput:
    """Output of the engine for one row: frames, packets of float32 samples, finish reasons."""

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


def run_engine(model: ParityModel, case: cases.Case, sampling: SamplingParams) -> list[EngineOutput]:
    """Run all rows of the case concurrently in one engine, in packets of 1, 2, 4, 4, ... frames."""
    rows = len(case.rows)
    loaded = model.loaded
    store = VoiceCache(model.backend.decoder, loaded.encoder, loaded.speaker_encoder, limit_bytes=2**28)
    engine = Engine(
        model.backend,
        BpeFrontEnd(model.tokenizer),
        EngineConfig(max_num_seqs=rows, kv_slots=rows, max_seq_len=MAX_SEQ_LEN),
        poison=True,
    )
    try:
        outputs = _record_frames(engine)
        handles = [engine.submit(_request(model, store, case, row, sampling)) for row in case.rows]
        for handle, row in zip(handles, case.rows, strict=True):
            handle.append_text(row.text)
            handle.end_text()
        for handle in handles:
            _read_packets(handle, outputs.setdefault(handle.id, EngineOutput()))
        return [outputs[handle.id] for handle in handles]
    finally:
        engine.close()


def _request(
    model: ParityModel, store: VoiceCache, case: cases.Case, row: cases.Row, sampling: SamplingParams
) -> StreamRequest:
    voice: ClonedVoice | None = None
    if row.reference_samples:
        voice = store.get_or_encode(cases.reference_audio(row.reference_samples), model.row_tokens(row)["reference"])
    spec = model.row_spec(row, whole=case.whole)
    packets = PacketPolicy((1, 2, 4))
    return StreamRequest(spec, sampling, seed=0, packets=packets, max_frames=case.max_new_tokens - 1, voice=voice)


def _record_frames(engine: Engine) -> dict[StreamId, EngineOutput]:
    """Wrap the engine's model runner so that it records each sampled frame by stream."""
    outputs: dict[StreamId, EngineOutput] = {}
    predict_frames = engine.runner.predict_frames

    def recorded(sequences: Rows[Sequence]) -> list[Frame | GenerationError]:
        frames = predict_frames(sequences)
        for sequence, frame in zip(sequences, frames, strict=True):
            if not isinstance(frame, GenerationError):
                outputs.setdefault(sequence.stream, EngineOutput()).frames.append(frame)
        return frames

    engine.runner.predict_frames = recorded  # type: ignore[method-assign]
    return outputs


def _read_packets(handle: StreamHandle, output: EngineOutput) -> None:
    for packet in handle:
        output.packets.append(packet.float32())
        if packet.finish_reason is not None:
            output.reasons.append(packet.finish_reason)
