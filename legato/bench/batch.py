"""Throughput against batch size: many streams through one loop, and what each part of it took.

Owns its loop for one measurement. Drives the engine's own parts by hand, without its thread, so that the figures are
those of full batches alone: all streams start together and each makes the same number of frames.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import torch

from legato.bench.report import Row
from legato.config.engine import EngineConfig
from legato.engine.assembly import Works, assemble, new_stream
from legato.engine.commands import AppendText, Cancel, Command, EndText, Submit
from legato.engine.demand import BACKGROUND
from legato.engine.frontend import FrontEnd
from legato.engine.memory import memory_of
from legato.engine.stats import PoolUse
from legato.engine.stream import StreamEvent, StreamRequest
from legato.errors import LegatoError
from legato.flow import StreamId
from legato.models.load import LoadedModel

TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: `streams` at once, `frames` of each, after `warm_up` streams that do not count."""

    streams: int
    frames: int
    positions: int
    deterministic: bool
    warm_up_frames: int = 2


def measure(model: LoadedModel, front_end: FrontEnd, request: StreamRequest, load: Load) -> Row:
    """One row of the table. `request` is spoken by every stream, each with a seed of its own."""
    config = EngineConfig(
        streams=load.streams, kv_slots=load.streams, positions=load.positions, deterministic=load.deterministic
    )
    settle = _settle(model)
    _run(assemble(model, config, time.perf_counter), front_end, request, replace(load, frames=load.warm_up_frames))
    works = assemble(model, config, time.perf_counter, settle=settle)
    if model.talker.codec_head.weight.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    began_s = time.perf_counter()
    _run(works, front_end, request, load)
    settle()
    total_s = time.perf_counter() - began_s
    return _row(model, works, config, load, total_s)


def _run(works: Works, front_end: FrontEnd, request: StreamRequest, load: Load) -> None:
    """Speak in all streams until each has its frames; what was begun is cancelled at the end."""
    ids, failed = count(), list[LegatoError]()
    received = [0] * load.streams

    def receive(number: int) -> Callable[[StreamEvent], None]:
        def take(event: StreamEvent) -> None:
            if isinstance(event, LegatoError):
                failed.append(event)
            else:
                received[number] += event.frames

        return take

    commands: list[Command] = []
    for number in range(load.streams):
        own = replace(request, seed=number, max_frames=load.frames, demand=BACKGROUND)
        stream = new_stream(StreamId(number), own, front_end, receive(number), lambda: next(ids))
        commands += [Submit(stream, time.perf_counter())]
        commands += [AppendText(stream.id, TEXT * (1 + load.frames // 20)), EndText(stream.id)]
    with torch.inference_mode():
        while works.loop.turn(commands) and not failed:
            commands = []
        works.loop.turn([Cancel(StreamId(number)) for number in range(load.streams)])
    if failed:
        raise failed[0]


def _row(model: LoadedModel, works: Works, config: EngineConfig, load: Load, total_s: float) -> Row:
    slots = PoolUse(0, 0)
    stats = works.stats.snapshot(streams_open=0, talker_slots=slots, codec_slots=slots)
    memory = memory_of(works.kv_pool.cache, works.codec_pool.slot_bytes, config)
    steps, busy_s = stats.rows, {name: each.total for name, each in stats.busy_s.items()}
    audio_s = stats.frames * model.config.codec.frame_samples / model.config.codec.sample_rate_hz

    def rate(part: str, amount: float) -> float:
        return amount / busy_s[part] if busy_s[part] else 0.0

    return Row(
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
        slot_bytes=memory.kv_slot_bytes + memory.codec_slot_bytes,
        peak_bytes=_peak_bytes(model),
    )


def _settle(model: LoadedModel) -> Callable[[], None]:
    """Waits for the device, so that each part's seconds are its own. On a CPU there is nothing to wait for."""
    return torch.cuda.synchronize if model.talker.codec_head.weight.is_cuda else lambda: None


def _peak_bytes(model: LoadedModel) -> int:
    """The most memory so far: of the device on CUDA, else of this process, weights included."""
    if model.talker.codec_head.weight.is_cuda:
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
