"""An engine without a thread, stepped by the check, with counters of the work done for each stream.

The check decides in which step a stream joins, leaves or waits, so every run is the same. Components are wired as in
`engine.assembly`, without CUDA graphs; those have checks of their own. One `SteppedEngine` serves one scenario. A
negative control replaces a component by a faulty one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from legato.config.engine import EngineConfig
from legato.engine.assembly import new_stream
from legato.engine.batches import RowsPerCall
from legato.engine.codec_runner import CodecRunner, Window
from legato.engine.codec_state import CodecPool
from legato.engine.core import EngineContext, EngineCore
from legato.engine.frontend import FrontEnd
from legato.engine.kv_cache import KVPool, PrefixCache
from legato.engine.model_runner import ModelRunner
from legato.engine.registry import StreamRegistry
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import AppendText, Cancel, Command, EndText, Stream, StreamEvent, StreamRequest, Submit
from legato.errors import GenerationError, LegatoError, StateError
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.types import Frame, Packet, StreamId
from legato.verify.target import Target

MAX_STEPS = 5000


class CountingRunner(ModelRunner):
    """A model runner that counts prompt positions, talker steps and frames per stream, and keeps the frames."""

    def init_counters(self) -> None:
        """Create empty counters; call once before use."""
        self.computed: Counter[tuple[StreamId, str]] = Counter()
        self.frames: defaultdict[StreamId, list[Frame]] = defaultdict(list)

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        for sequence, _, length in slices:
            self.computed[sequence.stream, "prompt positions"] += length
        return super().prefill(slices)

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        self.computed.update((sequence.stream, "talker steps") for sequence in sequences)
        super().step(sequences)

    def predict_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        self.computed.update((sequence.stream, "frames sampled") for sequence in sequences)
        sampled = super().predict_frames(sequences)
        for sequence, frame in zip(sequences, sampled, strict=True):
            if isinstance(frame, tuple):
                self.frames[sequence.stream].append(frame)
        return sampled


class CountingCodecRunner(CodecRunner):
    """A codec runner that counts decoded frames in the counters of the model runner."""

    def use_counters(self, computed: Counter[tuple[StreamId, str]]) -> None:
        """Set the counters; call once before use."""
        self.computed = computed

    def decode(self, windows: Sequence[Window]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
        for window in windows:
            self.computed[window.lease.stream, "frames decoded"] += len(window.frames)
        return super().decode(windows)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Components of a `SteppedEngine`; a negative control replaces one. `front_end` defaults to the target's."""

    kv_pool: type[KVPool] = KVPool
    codec_pool: type[CodecPool] = CodecPool
    runner: type[CountingRunner] = CountingRunner
    front_end: FrontEnd | None = None


DEFAULT_PARTS = EngineParts()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Output of one stream: sampled codes, samples [1, N], and error messages."""

    codes: tuple[Frame, ...]
    samples: Tensor
    errors: tuple[str, ...]


@dataclass(slots=True)
class Client:
    """A submitted stream and the events its client received."""

    stream: Stream
    events: list[StreamEvent] = field(default_factory=list)

    @property
    def id(self) -> StreamId:
        return self.stream.id

    @property
    def packets(self) -> int:
        return len(self.events)


class SteppedEngine:
    """An engine core over the target's model."""

    def __init__(self, target: Target, config: EngineConfig, parts: EngineParts = DEFAULT_PARTS) -> None:
        model = target.model
        self._front_end = parts.front_end or target.front_end
        stack = model.config.talker.stack
        cache = TalkerCache.allocate(stack, config.kv_slots, config.max_seq_len, model.cache_dtype, target.device)
        self.kv = parts.kv_pool(cache, poison=True)
        self.codec = parts.codec_pool(CodecStatePool(target.backend.decoder.initial_history(config.max_num_seqs)))
        rows = RowsPerCall.from_config(config, target.backend.batch_invariance)
        prefixes = PrefixCache(config.prefix_cache_bytes)
        self.runner = parts.runner(target.backend, self.kv, rows_per_call=rows, prefixes=prefixes)
        self.runner.init_counters()
        codec_runner = CountingCodecRunner(target.backend, self.codec, rows_per_call=rows.codec)
        codec_runner.use_counters(self.runner.computed)
        rate_hz = model.config.codec.sample_rate_hz
        self._registry = StreamRegistry(self.runner, self.codec, rate_hz)
        context = EngineContext(
            runner=self.runner,
            codec=codec_runner,
            clock=lambda: 0.0,
            prefill_limits=config.prefill_limits,
            sample_rate_hz=rate_hz,
            frame_audio_s=model.config.codec.frame_samples / rate_hz,
            max_batch_size=config.max_batch_size,
            adaptive=not config.deterministic,
        )
        self._core = EngineCore(context, self._registry)
        self._clients: list[Client] = []
        self._sequence_ids = itertools.count()
        self._pending: list[Command] = []

    def submit(self, request: StreamRequest, text: str = "", *, ended: bool = True) -> Client:
        """Queue a stream, with its text if there is any, for the next step. `ended`: no more text follows."""
        stream_id = StreamId(len(self._clients))
        events: list[StreamEvent] = []
        stream = new_stream(stream_id, request, self._front_end, events.append, lambda: next(self._sequence_ids))
        client = Client(stream, events)
        self._clients.append(client)
        self._pending.append(Submit(stream, 0.0))
        if text:
            self.append(client, text)
        if ended:
            self.end(client)
        return client

    def append(self, client: Client, text: str) -> None:
        self._pending.append(AppendText(client.id, text))

    def end(self, client: Client) -> None:
        self._pending.append(EndText(client.id))

    def cancel(self, client: Client) -> None:
        self._pending.append(Cancel(client.id))

    def step(self) -> bool:
        """Run one engine step; False if there was nothing to do."""
        commands, self._pending = self._pending, []
        return self._core.step(commands)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Step until `done` is true or the engine is idle."""
        for _ in range(MAX_STEPS):
            if done() or not self.step():
                return
        raise StateError(f"the engine is still busy after {MAX_STEPS} steps")

    def run(self) -> None:
        """Step until the engine is idle."""
        self.run_until(lambda: False)

    @property
    def all_slots_free(self) -> bool:
        """True if every slot is free and no stream or sequence is active."""
        return self.kv.all_free and self.codec.all_free and not len(self._registry) and not self.runner.num_sequences

    def computed(self, client: Client) -> dict[str, int]:
        """Work done for a client so far, by kind."""
        kinds = ("prompt positions", "talker steps", "frames sampled", "frames decoded")
        return {kind: self.runner.computed[client.id, kind] for kind in kinds}

    def outcome(self, client: Client) -> Outcome:
        """The client's codes, samples and errors so far."""
        packets = [event for event in client.events if isinstance(event, Packet)]
        errors = [event for event in client.events if isinstance(event, LegatoError)]
        samples = np.concatenate([np.empty(0, np.float32), *(packet.float32() for packet in packets)])
        return Outcome(
            codes=tuple(self.runner.frames[client.id]),
            samples=torch.from_numpy(samples)[None],
            errors=tuple(f"{type(error).__name__}: {error}" for error in errors),
        )
