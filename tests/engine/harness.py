"""A loop with everything around it fake or tiny: letters for text, a scripted talker or a tiny one, a tiny codec.

For tests alone. `Harness` drives turns by hand under a fake clock, so that a test decides what happens between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from legato.engine.batches import RowsPerCall
from legato.engine.codec_pool import CodecPool
from legato.engine.commands import AppendText, Cancel, Command, EndText, SetDemand, Submit, Taken
from legato.engine.decode import CodecStage
from legato.engine.demand import UNLIMITED, Demand
from legato.engine.framing import PacketPolicy
from legato.engine.intake import TextIntake
from legato.engine.kv_pool import KVPool
from legato.engine.loop import Loop, Machinery
from legato.engine.prefixes import PrefixStore
from legato.engine.roster import Roster
from legato.engine.runner import Runner
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stats import StreamTiming
from legato.engine.stream import Stream, StreamEvent, StreamRequest
from legato.errors import GenerationError, LegatoError
from legato.flow import FinishReason, Frame, Packet, PromptSpec, Sampling, SequenceId, StreamId, TextLayout, TextToken
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.models.voice import Voice
from legato.text.budget import Watchdog
from legato.text.segment import Segmenter, SegmentRule
from tests.engine.tiny import LetterTrack, tiny_config, tiny_decoder, tiny_predictor, tiny_talker
from tests.models.tiny_talker import stack

GREEDY = Sampling(0.0, 0, 1.0, 1.0, 0.0, 0, 1.0)
WARM = Sampling(0.9, 12, 1.0, 1.05, 0.9, 12, 1.0)
SHORT = SegmentRule(paragraph_chars=4, target_chars=8, max_chars=40)
LONG = SegmentRule(paragraph_chars=4000, target_chars=5000, max_chars=9000)


class RecordingRunner(Runner):
    """A runner that remembers the frames it drew, by the seed of their sequence."""

    def __init__(self, pool: KVPool, rows_per_call: int, prefixes: PrefixStore) -> None:
        rows = RowsPerCall.same(rows_per_call)
        super().__init__(tiny_config(), tiny_talker(), tiny_predictor(), pool, rows_per_call=rows, prefixes=prefixes)
        self.prefilled: list[tuple[int, int, int]] = []
        self.drawn: dict[int, list[Frame]] = {}

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        self.prefilled += [(sequence.seed, start, length) for sequence, start, length in slices]
        return super().prefill(slices)

    def draw_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        frames = super().draw_frames(sequences)
        for sequence, frame in zip(sequences, frames, strict=True):
            assert isinstance(frame, tuple)
            self.drawn.setdefault(sequence.seed, []).append(frame)
        return frames


class ScriptedRunner(Runner):
    """A talker that says what its script says: `script(seed, frame)` gives a frame, an end, or an error."""

    def __init__(self, pool: KVPool, script: Callable[[int, int], Frame | FinishReason | GenerationError]) -> None:
        rows = RowsPerCall.same(64)
        super().__init__(
            tiny_config(), tiny_talker(), tiny_predictor(), pool, rows_per_call=rows, prefixes=PrefixStore(0)
        )
        self._script = script
        self.steps = 0

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        self.steps += len(sequences)
        super().step(sequences)

    def draw_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        outcomes: list[int | FinishReason | GenerationError] = []
        for sequence in sequences:
            line = self._script(sequence.seed, sequence.frames)
            outcomes.append(line[0] if isinstance(line, tuple) else line)
        return outcomes

    def draw_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        frames: list[Frame | GenerationError] = []
        for sequence in sequences:
            line = self._script(sequence.seed, sequence.frames)
            assert not isinstance(line, FinishReason)
            frames.append(line)
        self.frames_drawn += len(sequences)
        return frames


@dataclass
class Heard:
    """What one client got."""

    events: list[StreamEvent] = field(default_factory=list)

    @property
    def packets(self) -> list[Packet]:
        return [event for event in self.events if isinstance(event, Packet)]

    @property
    def errors(self) -> list[LegatoError]:
        return [event for event in self.events if isinstance(event, LegatoError)]

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        return np.concatenate([np.empty(0, np.float32), *(packet.float32() for packet in self.packets)])

    @property
    def frames(self) -> int:
        return sum(packet.frames for packet in self.packets)

    @property
    def reason(self) -> FinishReason:
        reason = self.packets[-1].finish_reason
        assert self.packets[-1].last
        assert reason is not None
        return reason


class Harness:
    """A loop driven turn by turn."""

    def __init__(
        self,
        script: Callable[[int, int], Frame | FinishReason | GenerationError] | None = None,
        *,
        streams: int = 4,
        positions: int = 256,
        prefill_positions: int = 64,
        segments: SegmentRule = LONG,
        rows_per_call: int = 64,
        rows: int = 64,
        adaptive: bool = False,
        prefix_bytes: int = 2**20,
        tick_s: float = 0.01,
    ) -> None:
        self.now_s = 0.0
        self.tick_s = tick_s
        self.kv = KVPool(TalkerCache.allocate(stack(), streams + 1, positions, torch.float32), poison=True)
        decoder = tiny_decoder()
        self.codec = CodecPool(CodecStatePool(decoder.fresh(streams)))
        self.prefixes = PrefixStore(prefix_bytes)
        self.runner: Runner = (
            ScriptedRunner(self.kv, script) if script else RecordingRunner(self.kv, rows_per_call, self.prefixes)
        )
        self.stage = CodecStage(decoder, self.codec, rows_per_call=rows_per_call)
        self.roster = Roster(self.runner, self.codec, 24000)
        self._pending: list[Command] = []
        machinery = Machinery(
            self.runner,
            self.stage,
            lambda: self.now_s,
            (prefill_positions, prefill_positions),
            24000,
            rows=rows,
            adaptive=adaptive,
            more=self._take_pending,
        )
        self.loop = Loop(machinery, self.roster)
        self.segments = segments
        self.streams: list[Stream] = []
        self._sequences = 0

    def submit(
        self,
        text: str = "",
        *,
        seed: int = 0,
        ended: bool = True,
        sampling: Sampling = GREEDY,
        packets: tuple[int, ...] = (1, 2, 4),
        max_frames: int = 0,
        layout: TextLayout = TextLayout.STREAMING,
        demand: Demand = UNLIMITED,
        instruct: tuple[TextToken, ...] = (),
        voices: tuple[Voice, ...] = (),
    ) -> tuple[StreamId, Heard]:
        """Queue a stream and its text for the next turn."""
        spec = PromptSpec(
            language="auto",
            speaker="",
            layout=layout,
            instruct=instruct,
            speaker_vector=bool(voices),
            reference_text=voices[0].reference_text if voices else (),
            reference_frames=voices[0].frames if voices else 0,
        )
        request = StreamRequest(spec, sampling, seed, PacketPolicy(packets), max_frames, voices, demand)
        heard = Heard()
        stream_id = StreamId(len(self.streams))
        stream = Stream(
            id=stream_id,
            request=request,
            intake=TextIntake(Segmenter(self.segments), lambda number: self._sequence(stream_id, number, request)),
            sink=heard.events.append,
            timing=StreamTiming(),
            watchdog=Watchdog(),
        )
        self.streams.append(stream)
        self._pending.append(Submit(stream, self.now_s))
        if text:
            self.append(stream_id, text)
        if ended:
            self.end(stream_id)
        return stream_id, heard

    def append(self, stream: StreamId, text: str) -> None:
        self._pending.append(AppendText(stream, text))

    def end(self, stream: StreamId) -> None:
        self._pending.append(EndText(stream))

    def cancel(self, stream: StreamId) -> None:
        self._pending.append(Cancel(stream))

    def demand(self, stream: StreamId, demand: Demand, taken: int = 0) -> None:
        self._pending.append(SetDemand(stream, demand, taken))

    def taken(self, stream: StreamId, frames: int) -> None:
        self._pending.append(Taken(stream, frames))

    def turn(self) -> bool:
        """One turn, a tick of the clock long."""
        self.now_s += self.tick_s
        with torch.inference_mode():
            return self.loop.turn(self._take_pending())

    def _take_pending(self) -> list[Command]:
        commands, self._pending = self._pending, []
        return commands

    def run(self, turns: int = 3000) -> None:
        """Turns until nothing is left to do."""
        for _ in range(turns):
            if not self.turn():
                return
        raise AssertionError(f"still busy after {turns} turns")

    def codes(self, seed: int) -> list[Frame]:
        """The frames that the tiny talker drew for the sequences with `seed`."""
        assert isinstance(self.runner, RecordingRunner)
        return self.runner.drawn.get(seed, [])

    def assert_balanced(self) -> None:
        """All slots are back and nothing is under way."""
        assert len(self.roster) == 0
        assert self.kv.balanced
        assert self.codec.balanced

    def _sequence(self, stream: StreamId, number: int, request: StreamRequest) -> TalkerSequence:
        self._sequences += 1
        return TalkerSequence(
            id=SequenceId(self._sequences),
            stream=stream,
            number=number,
            track=LetterTrack(),
            spec=request.spec,
            sampling=request.sampling,
            seed=request.seed,
            ends_with_track=False,
        )
