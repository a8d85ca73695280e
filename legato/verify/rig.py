"""The engine's loop driven by hand, with counters: who joins, leaves or waits in which turn is the check's choice.

Wired as `engine.assembly` wires it, but without a thread, so that a run is the same every time, and call by call: what
an engine on CUDA records is compared with its calls in the group of graphs. A rig lives for one scenario. A control
hands in a broken part.
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
from legato.engine.codec_pool import CodecPool
from legato.engine.commands import AppendText, Cancel, Command, EndText, Submit
from legato.engine.decode import CodecStage, Window
from legato.engine.frontend import FrontEnd
from legato.engine.kv_pool import KVPool
from legato.engine.loop import Loop, Machinery
from legato.engine.prefixes import PrefixStore
from legato.engine.roster import Roster
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import Stream, StreamEvent, StreamRequest
from legato.errors import GenerationError, LegatoError, StateError
from legato.flow import Frame, Packet, StreamId
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.verify.subject import Subject

MOST_TURNS = 5000


class CountingRunner(Runner):
    """A runner that counts, for each stream, the prompt positions, talker steps and frames it computed."""

    def count_from_now(self) -> None:
        """Empty counters; called once before use."""
        self.computed: Counter[tuple[StreamId, str]] = Counter()
        self.frames: defaultdict[StreamId, list[Frame]] = defaultdict(list)

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        for sequence, _, length in slices:
            self.computed[sequence.stream, "prompt positions"] += length
        return super().prefill(slices)

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        self.computed.update((sequence.stream, "talker steps") for sequence in sequences)
        super().step(sequences)

    def draw_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        self.computed.update((sequence.stream, "frames drawn") for sequence in sequences)
        drawn = super().draw_frames(sequences)
        for sequence, frame in zip(sequences, drawn, strict=True):
            if isinstance(frame, tuple):
                self.frames[sequence.stream].append(frame)
        return drawn


class CountingStage(CodecStage):
    """A codec stage that counts the frames it decoded, in the runner's counters."""

    def count_in(self, computed: Counter[tuple[StreamId, str]]) -> None:
        """Where to count; called once before use."""
        self.computed = computed

    def decode(self, windows: Sequence[Window]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
        for window in windows:
            self.computed[window.lease.stream, "frames decoded"] += len(window.frames)
        return super().decode(windows)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a rig is made of; a control replaces one."""

    kv_pool: type[KVPool] = KVPool
    codec_pool: type[CodecPool] = CodecPool
    runner: type[CountingRunner] = CountingRunner
    front_ends: tuple[FrontEnd, ...] = ()


SOUND = Parts()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one client got: the codes that were drawn for it, its samples [1, N], and what went wrong."""

    codes: tuple[Frame, ...]
    samples: Tensor
    errors: tuple[str, ...]


@dataclass(slots=True)
class Client:
    """One submitted stream as its client sees it."""

    stream: Stream
    events: list[StreamEvent] = field(default_factory=list)

    @property
    def id(self) -> StreamId:
        return self.stream.id

    @property
    def packets(self) -> int:
        return len(self.events)


class Rig:
    """A loop over the subject's weights."""

    def __init__(self, subject: Subject, config: EngineConfig, parts: Parts = SOUND) -> None:
        model = subject.model
        self._front_end = parts.front_ends[0] if parts.front_ends else subject.front_end
        stack = model.config.talker.stack
        cache = TalkerCache.allocate(stack, config.kv_slots, config.positions, model.cache_dtype, subject.device)
        self.kv = parts.kv_pool(cache, poison=True)
        self.codec = parts.codec_pool(CodecStatePool(model.decoder.fresh(config.streams)))
        rows = RowsPerCall.of(config, model.batch_invariant)
        prefixes = PrefixStore(config.prefix_cache_bytes)
        self.runner = parts.runner(
            model.config, model.talker, model.code_predictor, self.kv, rows_per_call=rows, prefixes=prefixes
        )
        self.runner.count_from_now()
        stage = CountingStage(model.decoder, self.codec, rows_per_call=rows.codec)
        stage.count_in(self.runner.computed)
        rate_hz = model.config.codec.sample_rate_hz
        self._roster = Roster(self.runner, self.codec, rate_hz)
        machinery = Machinery(
            self.runner,
            stage,
            lambda: 0.0,
            config.prefill_per_turn,
            rate_hz,
            rows=config.rows_per_turn,
            adaptive=not config.deterministic,
        )
        self._loop = Loop(machinery, self._roster)
        self._clients: list[Client] = []
        self._sequence_ids = itertools.count()
        self._pending: list[Command] = []

    def submit(self, request: StreamRequest, text: str = "", *, ended: bool = True) -> Client:
        """Queue a stream, and its text if there is some, for the next turn."""
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

    def turn(self) -> bool:
        """One turn; False when there was nothing to do."""
        commands, self._pending = self._pending, []
        return self._loop.turn(commands)

    def turns_until(self, done: Callable[[], bool]) -> None:
        """Turns until `done` or until nothing is left to do."""
        for _ in range(MOST_TURNS):
            if done() or not self.turn():
                return
        raise StateError(f"the loop is still busy after {MOST_TURNS} turns")

    def run(self) -> None:
        """Turns until nothing is left to do."""
        self.turns_until(lambda: False)

    @property
    def balanced(self) -> bool:
        """True when every slot is free and nothing is under way."""
        return self.kv.balanced and self.codec.balanced and not len(self._roster) and not self.runner.seated

    def computed(self, client: Client) -> dict[str, int]:
        """What was computed for a client so far."""
        kinds = ("prompt positions", "talker steps", "frames drawn", "frames decoded")
        return {kind: self.runner.computed[client.id, kind] for kind in kinds}

    def outcome(self, client: Client) -> Outcome:
        """What the client has got."""
        packets = [event for event in client.events if isinstance(event, Packet)]
        errors = [event for event in client.events if isinstance(event, LegatoError)]
        samples = np.concatenate([np.empty(0, np.float32), *(packet.float32() for packet in packets)])
        return Outcome(
            tuple(self.runner.frames[client.id]),
            torch.from_numpy(samples)[None],
            tuple(f"{type(error).__name__}: {error}" for error in errors),
        )
