"""The parts of an engine put together: pools, runner, codec stage, roster, loop. Owns nothing afterwards.

The engine drives them from its thread; a benchmark drives the same ones by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from legato.config.engine import EngineConfig
from legato.engine.batches import RowsPerCall
from legato.engine.codec_pool import CodecPool
from legato.engine.commands import Command
from legato.engine.decode import CodecStage
from legato.engine.frontend import FrontEnd
from legato.engine.graphs import record, spare_slots
from legato.engine.intake import TextIntake
from legato.engine.kv_pool import KVPool
from legato.engine.loop import Loop
from legato.engine.machinery import Machinery
from legato.engine.prefixes import PrefixStore
from legato.engine.roster import Roster
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence
from legato.engine.stats import EngineStats, StreamTiming
from legato.engine.stream import Stream, StreamEvent, StreamRequest
from legato.flow import SequenceId, StreamId
from legato.models.codec.state import CodecStatePool
from legato.models.load import LoadedModel
from legato.models.talker.state import TalkerCache
from legato.text.budget import Watchdog
from legato.text.segment import Segmenter


@dataclass(frozen=True, slots=True)
class Works:
    """Everything that has tensors or decides about them."""

    runner: Runner
    codec: CodecStage
    roster: Roster
    loop: Loop
    stats: EngineStats

    @property
    def kv_pool(self) -> KVPool:
        return self.runner.pool

    @property
    def codec_pool(self) -> CodecPool:
        return self.codec.pool


def assemble(
    model: LoadedModel,
    config: EngineConfig,
    clock: Callable[[], float],
    *,
    poison: bool = False,
    more: Callable[[], Iterable[Command]] = tuple,
    settle: Callable[[], None] = lambda: None,
) -> Works:
    """Allocate what `config` says and wire it. `more` and `settle` as in `Machinery`; `poison`: NaN in free slots."""
    device = model.talker.codec_head.weight.device
    spare = spare_slots(config, device)
    slots = config.kv_slots + spare
    cache = TalkerCache.allocate(model.config.talker.stack, slots, config.positions, model.cache_dtype, device)
    with torch.inference_mode():
        kv_pool = KVPool(cache, spare=spare, poison=poison)
        codec_pool = CodecPool(CodecStatePool(model.decoder.fresh(config.streams + spare)), spare=spare)
    rows = RowsPerCall.of(config, model.batch_invariant)
    prefixes = PrefixStore(config.prefix_cache_bytes)
    runner = Runner(model.config, model.talker, model.code_predictor, kv_pool, rows_per_call=rows, prefixes=prefixes)
    codec = CodecStage(model.decoder, codec_pool, rows_per_call=rows.codec)
    if spare:
        record(runner, codec, config)
    rate_hz = model.config.codec.sample_rate_hz
    stats = EngineStats()
    roster = Roster(runner, codec_pool, rate_hz, stats)
    machinery = Machinery(
        runner,
        codec,
        clock,
        config.prefill_per_turn,
        rate_hz,
        rows=config.rows_per_turn,
        adaptive=not config.deterministic,
        more=more,
        settle=settle,
    )
    return Works(runner, codec, roster, Loop(machinery, roster), stats)


def new_stream(
    stream: StreamId,
    request: StreamRequest,
    front_end: FrontEnd,
    sink: Callable[[StreamEvent], None],
    sequence_ids: Callable[[], int],
) -> Stream:
    """A stream without text. `sequence_ids` numbers its sequences, unique within the engine."""

    def new_sequence(number: int) -> Sequence:
        return Sequence(
            id=SequenceId(sequence_ids()),
            stream=stream,
            number=number,
            track=front_end.track(request.spec.speaker, request.speed),
            spec=request.spec,
            sampling=request.sampling,
            seed=request.seed,
            ends_with_track=front_end.ends_with_track,
        )

    return Stream(
        id=stream,
        request=request,
        intake=TextIntake(Segmenter(front_end.segments), new_sequence),
        sink=sink,
        timing=StreamTiming(),
        watchdog=Watchdog(),
    )
