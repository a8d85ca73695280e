"""Throughput against batch size: many streams through one loop, and what each part of it took.

Owns its loop for one measurement. Drives the engine's own parts by hand, without its thread, so that the figures are
those of full batches alone: all streams start together and each makes the same number of frames.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from legato.bench.chorus import Chorus
from legato.bench.device import forget_peak, peak_bytes, settle_of
from legato.bench.facts import Machine, ModelFacts
from legato.bench.records import BatchRecord
from legato.config.engine import EngineConfig
from legato.engine.assembly import Works, assemble
from legato.engine.frontend import FrontEnd
from legato.engine.stats import PoolUse
from legato.engine.stream import StreamRequest
from legato.models.load import LoadedModel


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: `streams` at once, `frames` of each, after `warm_up_frames` of each that do not count."""

    streams: int
    frames: int
    positions: int
    deterministic: bool
    graphs: bool = True
    warm_up_frames: int = 2


def measure(
    model: LoadedModel, front_end: FrontEnd, request: StreamRequest, load: Load, *, machine: Machine, facts: ModelFacts
) -> BatchRecord:
    """One row of the table. `request` is spoken by every stream, each with a seed of its own."""
    config = EngineConfig(
        streams=load.streams,
        kv_slots=load.streams,
        positions=load.positions,
        deterministic=load.deterministic,
        graphs=load.graphs,
    )
    settle = settle_of(model)
    warm_up = assemble(model, config, time.perf_counter)
    Chorus(warm_up, front_end, request, streams=load.streams, frames=load.warm_up_frames).run()
    works = assemble(model, config, time.perf_counter, settle=settle)
    forget_peak(model)
    began_s = time.perf_counter()
    Chorus(works, front_end, request, streams=load.streams, frames=load.frames).run()
    settle()
    total_s = time.perf_counter() - began_s
    return _record(model, works, load, total_s, machine=machine, facts=facts, packet_frames=request.packets.frames)


def _record(
    model: LoadedModel,
    works: Works,
    load: Load,
    total_s: float,
    *,
    machine: Machine,
    facts: ModelFacts,
    packet_frames: tuple[int, ...],
) -> BatchRecord:
    slots = PoolUse(0, 0)
    stats = works.stats.snapshot(streams_open=0, talker_slots=slots, codec_slots=slots)
    steps, busy_s = stats.rows, {name: each.total for name, each in stats.busy_s.items()}
    audio_s = stats.frames * facts.frame_samples / facts.sample_rate_hz

    def rate(part: str, amount: float) -> float:
        return amount / busy_s[part] if busy_s[part] else 0.0

    return BatchRecord(
        machine=machine,
        model=facts,
        packet_frames=packet_frames,
        positions=load.positions,
        mode="deterministic" if load.deterministic else "default",
        streams=load.streams,
        frames=stats.frames,
        talker_frames_s=rate("talker", steps["talker"].total),
        predictor_frames_s=rate("code predictor", steps["code predictor"].total),
        codec_frames_s=rate("codec", stats.frames),
        total_frames_s=stats.frames / total_s,
        audio_s_per_s=audio_s / total_s,
        prefill_s=busy_s["prefill"],
        other_s=max(0.0, total_s - sum(busy_s.values())),
        total_s=total_s,
        slot_bytes=works.kv_pool.cache.bytes_per_position * load.positions + works.codec_pool.slot_bytes,
        peak_bytes=peak_bytes(model),
    )
