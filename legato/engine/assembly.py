"""Create the components of an engine: pools, runners, stream registry, core.

`Engine` calls them from its thread. Benchmarks call the same components directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from legato.backends.base import Backend
from legato.backends.cuda_graphs import CudaGraphsBackend, EngineState, spare_slots
from legato.config.engine import EngineConfig
from legato.engine.batches import RowsPerCall
from legato.engine.codec_runner import CodecRunner
from legato.engine.codec_state import CodecPool
from legato.engine.context import EngineContext
from legato.engine.core import EngineCore
from legato.engine.frontend import FrontEnd
from legato.engine.kv_cache import KVPool, PrefixCache
from legato.engine.model_runner import ModelRunner
from legato.engine.registry import StreamRegistry
from legato.engine.sequence import Sequence
from legato.engine.stats import EngineStats, StreamTiming
from legato.engine.stream import Command, Stream, StreamEvent, StreamRequest
from legato.engine.text_intake import TextIntake
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.text.budget import Watchdog
from legato.text.segmenter import Segmenter
from legato.types import SequenceId, StreamId


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Components of one engine: model and codec runners, stream registry, core, statistics."""

    runner: ModelRunner
    codec: CodecRunner
    registry: StreamRegistry
    core: EngineCore
    stats: EngineStats

    @property
    def kv_pool(self) -> KVPool:
        return self.runner.pool

    @property
    def codec_pool(self) -> CodecPool:
        return self.codec.pool


def assemble(
    backend: Backend,
    config: EngineConfig,
    clock: Callable[[], float],
    *,
    poison: bool = False,
    poll_commands: Callable[[], Iterable[Command]] = tuple,
    synchronize: Callable[[], None] = lambda: None,
) -> EngineParts:
    """Create the components. `poison` fills free slots with NaN. The callables are described at `EngineContext`."""
    model = backend.model
    num_padding = spare_slots(config, model.device)
    slots = config.kv_slots + num_padding
    cache = TalkerCache.allocate(model.config.talker.stack, slots, config.max_seq_len, model.cache_dtype, model.device)
    with torch.inference_mode():
        kv_pool = KVPool(cache, padding_slots=num_padding, poison=poison)
        codec_pool = CodecPool(
            CodecStatePool(backend.decoder.initial_history(config.max_num_seqs + num_padding)),
            padding_slots=num_padding,
        )
    rows = RowsPerCall.from_config(config, backend.batch_invariance)
    if num_padding:
        state = EngineState(cache, codec_pool.storage, kv_pool.padding_slot, codec_pool.padding_slot)
        backend = CudaGraphsBackend(backend, state, config)
    prefixes = PrefixCache(config.prefix_cache_bytes)
    runner = ModelRunner(backend, kv_pool, rows_per_call=rows, prefixes=prefixes)
    codec = CodecRunner(backend, codec_pool, rows_per_call=rows.codec)
    rate_hz = model.config.codec.sample_rate_hz
    stats = EngineStats()
    registry = StreamRegistry(runner, codec_pool, rate_hz, stats)
    context = EngineContext(
        runner=runner,
        codec=codec,
        clock=clock,
        prefill_limits=config.prefill_limits,
        sample_rate_hz=rate_hz,
        frame_audio_s=model.config.codec.frame_samples / rate_hz,
        max_batch_size=config.max_batch_size,
        yield_s=config.yield_s,
        parked_bytes=config.parked_bytes,
        adaptive=not config.deterministic,
        poll_commands=poll_commands,
        synchronize=synchronize,
        needs_torch_threads=backend.needs_torch_threads,
    )
    return EngineParts(runner, codec, registry, EngineCore(context, registry), stats)


def new_stream(
    stream: StreamId,
    request: StreamRequest,
    front_end: FrontEnd,
    on_event: Callable[[StreamEvent], None],
    next_sequence_id: Callable[[], int],
) -> Stream:
    """Create a stream without text. `next_sequence_id` returns a new id, unique within the engine, on each call."""

    def new_sequence(number: int) -> Sequence:
        return Sequence(
            id=SequenceId(next_sequence_id()),
            stream=stream,
            number=number,
            tokenizer=front_end.new_tokenizer(request.spec.speaker, request.speed),
            spec=request.spec,
            sampling=request.sampling,
            seed=request.seed,
            ends_with_text=front_end.ends_with_text,
        )

    return Stream(
        id=stream,
        request=request,
        intake=TextIntake(Segmenter(front_end.segment_rule), new_sequence),
        on_event=on_event,
        timing=StreamTiming(),
        watchdog=Watchdog(),
    )
