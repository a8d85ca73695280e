"""Throughput by batch size: run engine steps with a fixed batch of streams, without engine thread and clients.

All streams start together and generate the same number of frames, so every batch is full. A `SteadyBatch` holds the
streams of one measurement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from legato.backends.base import Backend
from legato.bench.environment import Machine, ModelInfo, peak_memory_bytes, reset_peak_memory, synchronize_fn
from legato.bench.records import MIB, BatchRecord
from legato.bench.rendering import ReportTable
from legato.config.engine import EngineConfig
from legato.engine.assembly import EngineParts, assemble, new_stream
from legato.engine.flow_control import BACKGROUND
from legato.engine.frontend import BpeFrontEnd, FrontEnd
from legato.engine.stats import PoolUse
from legato.engine.stream import AppendText, Cancel, Command, EndText, StreamEvent, StreamRequest, Submit
from legato.errors import LegatoError
from legato.types import StreamId

TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "
HEADINGS = ("mode", "streams", "talker f/s", "predictor f/s", "codec f/s", "total f/s", "audio s/s", "slot", "peak")


class SteadyBatch:
    """`streams` streams of `frames` frames each. All get `request`, each with its own seed."""

    def __init__(
        self, parts: EngineParts, front_end: FrontEnd, request: StreamRequest, *, streams: int, frames: int
    ) -> None:
        self._parts = parts
        self._errors: list[LegatoError] = []
        self._ids = [StreamId(number) for number in range(streams)]
        self._commands: list[Command] = []
        sequence_ids = count()
        for stream_id in self._ids:
            own = replace(request, seed=int(stream_id), max_frames=frames, flow_control=BACKGROUND)
            stream = new_stream(
                stream_id, own, without_early_stop(front_end), self._on_event, lambda: next(sequence_ids)
            )
            self._commands += [Submit(stream, time.perf_counter())]
            self._commands += [AppendText(stream_id, TEXT * (1 + frames // 20)), EndText(stream_id)]

    @property
    def frames_generated(self) -> int:
        """Frames of all streams so far."""
        return self._parts.runner.frames_sampled

    def step(self) -> bool:
        """Run one engine step; False when all streams are finished. Raises the error of a failed stream."""
        commands, self._commands = self._commands, []
        with torch.inference_mode():
            busy = self._parts.core.step(commands)
        if self._errors:
            raise self._errors[0]
        return busy

    def run(self) -> None:
        """Run steps until all streams are finished."""
        while self.step():
            continue
        self.stop()

    def stop(self) -> None:
        """Cancel the streams that are still active."""
        with torch.inference_mode():
            self._parts.core.step([Cancel(stream_id) for stream_id in self._ids])

    def _on_event(self, event: StreamEvent) -> None:
        if isinstance(event, LegatoError):
            self._errors.append(event)


def without_early_stop(front_end: FrontEnd) -> FrontEnd:
    """A front end with which speech ends with its text, because a sampled EOS would make the batch smaller."""
    return replace(front_end, ends_with_text=True) if isinstance(front_end, BpeFrontEnd) else front_end


# --- throughput ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """`streams` concurrent streams of `frames` frames each, after a warm-up of `warm_up_frames` each."""

    streams: int
    frames: int
    max_seq_len: int
    deterministic: bool
    cuda_graphs: bool = True
    warm_up_frames: int = 2


def measure_batch(
    backend: Backend,
    front_end: FrontEnd,
    request: StreamRequest,
    settings: BatchSettings,
    *,
    machine: Machine,
    model_info: ModelInfo,
) -> BatchRecord:
    """Measure one batch size in one mode."""
    config = EngineConfig(
        max_num_seqs=settings.streams,
        kv_slots=settings.streams,
        max_seq_len=settings.max_seq_len,
        deterministic=settings.deterministic,
        cuda_graphs=settings.cuda_graphs,
    )
    synchronize = synchronize_fn(backend.model)
    warm_up = assemble(backend, config, time.perf_counter)
    SteadyBatch(warm_up, front_end, request, streams=settings.streams, frames=settings.warm_up_frames).run()
    parts = assemble(backend, config, time.perf_counter, synchronize=synchronize)
    reset_peak_memory(backend.model)
    started_s = time.perf_counter()
    SteadyBatch(parts, front_end, request, streams=settings.streams, frames=settings.frames).run()
    synchronize()
    total_s = time.perf_counter() - started_s

    unused = PoolUse(0, 0)
    stats = parts.stats.snapshot(streams_open=0, streams_parked=0, talker_slots=unused, codec_slots=unused)
    rows, busy_s = stats.rows, {name: each.total for name, each in stats.busy_s.items()}
    audio_s = stats.frames * model_info.frame_samples / model_info.sample_rate_hz

    def rate(part: str, frames: float) -> float:
        return frames / busy_s[part] if busy_s[part] else 0.0

    return BatchRecord(
        machine=machine,
        model=model_info,
        packet_frames=request.packets.frames,
        max_seq_len=settings.max_seq_len,
        mode="deterministic" if settings.deterministic else "default",
        streams=settings.streams,
        frames=stats.frames,
        talker_frames_per_s=rate("talker", rows["talker"].total),
        predictor_frames_per_s=rate("code predictor", rows["code predictor"].total),
        codec_frames_per_s=rate("codec", stats.frames),
        total_frames_per_s=stats.frames / total_s,
        audio_s_per_s=audio_s / total_s,
        prefill_s=busy_s["prefill"],
        other_s=max(0.0, total_s - sum(busy_s.values())),
        total_s=total_s,
        slot_bytes=parts.kv_pool.cache.bytes_per_position * settings.max_seq_len + parts.codec_pool.slot_bytes,
        peak_bytes=peak_memory_bytes(backend.model),
    )


def deterministic_slowdown(records: Sequence[BatchRecord]) -> dict[int, float]:
    """Time of deterministic mode relative to the default, for each batch size measured in both modes."""
    rate = {(record.mode, record.streams): record.total_frames_per_s for record in records}
    return {
        streams: rate["default", streams] / deterministic
        for (mode, streams), deterministic in rate.items()
        if mode == "deterministic" and deterministic > 0 and ("default", streams) in rate
    }


def batch_tables(records: Sequence[BatchRecord]) -> Iterator[ReportTable]:
    """One table for each model."""
    for model in dict.fromkeys(record.model for record in records):
        of_model = [record for record in records if record.model == model]
        ordered = sorted(of_model, key=lambda each: (each.streams, each.mode))
        note = "Talker, predictor, codec: frames per second of compute time of that part. Total: of the engine step."
        slowdown = deterministic_slowdown(of_model)
        if slowdown:
            factors = ", ".join(f"{factor:.2f}x ({streams} streams)" for streams, factor in slowdown.items())
            note += f" Time of deterministic mode relative to the default: {factors}."
        yield ReportTable(
            title=f"Throughput against batch size: {model.name}",
            headings=HEADINGS,
            rows=tuple(_row(record) for record in ordered),
            note=note,
        )


def _row(record: BatchRecord) -> tuple[str, ...]:
    return (
        record.mode,
        str(record.streams),
        f"{record.talker_frames_per_s:.1f}",
        f"{record.predictor_frames_per_s:.1f}",
        f"{record.codec_frames_per_s:.1f}",
        f"{record.total_frames_per_s:.1f}",
        f"{record.audio_s_per_s:.2f}",
        f"{record.slot_bytes / MIB:.1f} MiB",
        f"{record.peak_bytes / MIB:.0f} MiB",
    )
