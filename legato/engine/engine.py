"""The engine's face: streams are submitted from any thread, packets come out of a handle.

Owns the one thread that touches tensors, the pools and the loop, from construction until `close`. Knows no HTTP.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from legato.config.engine import EngineConfig
from legato.engine.codec_pool import CodecPool
from legato.engine.commands import AppendText, Cancel, Command, EndText, SetDemand, Submit
from legato.engine.decode import CodecStage
from legato.engine.frontend import FrontEnd
from legato.engine.intake import TextIntake
from legato.engine.kv_pool import KVPool
from legato.engine.loop import Loop, Machinery
from legato.engine.roster import Roster
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence
from legato.engine.stats import StreamTiming
from legato.engine.stream import Stream, StreamEvent, StreamRequest
from legato.errors import EngineClosedError, LegatoError, QueueFullError
from legato.flow import Packet, SequenceId, StreamId
from legato.models.codec.state import CodecStatePool
from legato.models.load import LoadedModel
from legato.models.talker.state import TalkerCache
from legato.text.budget import Watchdog, frame_budget
from legato.text.segment import Segmenter


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the engine's thread: after the streams under way, or at once."""

    drain: bool


class StreamHandle:
    """One submitted stream, seen by its client: the four commands that flow back, and the packets as an iterator.

    Iterating raises the error that ended the stream, if one did. Usable from one thread; the commands from any.
    """

    def __init__(self, stream: Stream, events: queue.SimpleQueue[StreamEvent], tell: Callable[[Command], None]) -> None:
        self.id = stream.id
        self.timing = stream.timing
        self._stream = stream
        self._events = events
        self._tell = tell
        self._over = False

    @property
    def budget_frames(self) -> int:
        """The text-scaled limit of what was submitted so far, in frames; 0 where the text track itself is the limit."""
        return sum(frame_budget("".join(each.text)) for each in self._stream.sequences if not each.ends_with_track)

    def append_text(self, text: str) -> None:
        """More text, cut anywhere."""
        self._tell(AppendText(self.id, text))

    def end_text(self) -> None:
        """No more text will come."""
        self._tell(EndText(self.id))

    def cancel(self) -> None:
        """Stop the stream; allowed at any time, any number of times. The iterator ends with an empty last packet."""
        self._tell(Cancel(self.id))

    def set_demand(self, frames: int) -> None:
        """Generate at most `frames` frames in all until told otherwise; negative: everything."""
        self._tell(SetDemand(self.id, frames))

    def __iter__(self) -> Iterator[Packet]:
        return self

    def __next__(self) -> Packet:
        if self._over:
            raise StopIteration
        event = self._events.get()
        if isinstance(event, LegatoError):
            self._over = True
            raise event
        self._over = event.last
        return event


class Engine:
    """Continuous batching over one loaded model."""

    def __init__(
        self,
        model: LoadedModel,
        front_end: FrontEnd,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        poison: bool = False,
    ) -> None:
        self.model = model
        self.front_end = front_end
        self.config = config
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | _Stop] = queue.SimpleQueue()
        self._stream_ids = itertools.count()
        self._sequence_ids = itertools.count()
        self._open: set[StreamId] = set()
        self._lock = threading.Lock()
        self._closed = False
        weight = model.talker.codec_head.weight
        cache = TalkerCache.allocate(
            model.config.talker.stack, config.kv_slots, config.positions, weight.dtype, weight.device
        )
        with torch.inference_mode():
            self.kv_pool = KVPool(cache, poison=poison)
            self.codec_pool = CodecPool(CodecStatePool(model.decoder.fresh(config.streams)))
        rows = config.rows_per_call
        self.runner = Runner(model.config, model.talker, model.code_predictor, self.kv_pool, rows_per_call=rows)
        codec = CodecStage(model.decoder, self.codec_pool, rows_per_call=rows)
        rate_hz = model.config.codec.sample_rate_hz
        self._roster = Roster(self.runner, self.codec_pool, rate_hz)
        self._loop = Loop(Machinery(self.runner, codec, clock, config.prefill_positions, rate_hz), self._roster)
        self._thread = threading.Thread(target=self._work, name="legato-engine", daemon=True)
        self._thread.start()

    def submit(self, request: StreamRequest) -> StreamHandle:
        """Start a stream without text; give it some with `append_text` and close it with `end_text`."""
        received_s = self._clock()
        stream_id = StreamId(next(self._stream_ids))
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            limit = self.config.streams + self.config.queue
            if len(self._open) >= limit:
                raise QueueFullError(f"{len(self._open)} streams speak or wait already, and the limit is {limit}")
            self._open.add(stream_id)
        events: queue.SimpleQueue[StreamEvent] = queue.SimpleQueue()

        def sink(event: StreamEvent) -> None:
            if isinstance(event, LegatoError) or event.last:
                with self._lock:
                    self._open.discard(stream_id)
            events.put(event)

        stream = Stream(
            id=stream_id,
            request=request,
            intake=TextIntake(Segmenter(self.front_end.segments), lambda n: self._sequence(stream_id, n, request)),
            sink=sink,
            timing=StreamTiming(),
            watchdog=Watchdog(),
        )
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            self._commands.put(Submit(stream, received_s))
        return StreamHandle(stream, events, self._commands.put)

    def close(self, *, drain: bool = False) -> None:
        """End the engine's thread: after the streams under way with `drain`, else at once; closing twice is fine."""
        with self._lock:
            self._closed = True
            self._commands.put(_Stop(drain))
        self._thread.join()

    def _sequence(self, stream: StreamId, number: int, request: StreamRequest) -> Sequence:
        return Sequence(
            id=SequenceId(next(self._sequence_ids)),
            stream=stream,
            number=number,
            track=self.front_end.track(request.spec.speaker),
            spec=request.spec,
            sampling=request.sampling,
            seed=request.seed,
            ends_with_track=self.front_end.ends_with_track,
        )

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with torch.inference_mode():
            busy, stopping = False, False
            while not (stopping and not len(self._roster)):
                commands, stops = self._next_commands(wait=not busy)
                stopping = stopping or bool(stops)
                commands += [
                    EndText(stream.id) if stop.drain else Cancel(stream.id)
                    for stop in stops
                    for stream in self._roster.streams()
                ]
                try:
                    busy = self._loop.turn(commands)
                except Exception as error:  # boundary: whatever breaks a turn ends every stream aloud, none hangs
                    for stream in self._roster.streams():
                        self._roster.fail(stream, EngineClosedError(f"a turn failed: {type(error).__name__}: {error}"))
                    busy = False

    def _next_commands(self, *, wait: bool) -> tuple[list[Command], list[_Stop]]:
        """All commands that have come; waits for one if there is nothing else to do."""
        commands: list[Command] = []
        stops: list[_Stop] = []
        if wait:
            self._sort(self._commands.get(), commands, stops)
        while not self._commands.empty():
            self._sort(self._commands.get(), commands, stops)
        return commands, stops

    @staticmethod
    def _sort(item: Command | _Stop, commands: list[Command], stops: list[_Stop]) -> None:
        if isinstance(item, _Stop):
            stops.append(item)
        else:
            commands.append(item)
