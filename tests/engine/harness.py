"""Engine core without a thread, for tests: letter tokens, a scripted or tiny talker, a tiny codec, a fake clock.

A test calls `Harness.step` itself, so it decides what happens between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from legato.engine.batches import RowsPerCall
from legato.engine.codec_runner import CodecRunner
from legato.engine.codec_state import CodecPool
from legato.engine.core import EngineContext, EngineCore
from legato.engine.flow_control import UNLIMITED, FlowControl
from legato.engine.kv_cache import KVPool, PrefixCache
from legato.engine.model_runner import ModelRunner
from legato.engine.packetizer import PacketPolicy
from legato.engine.registry import StreamRegistry
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stats import StreamTiming
from legato.engine.stream import (
    AppendText,
    Cancel,
    Command,
    Consumed,
    EndText,
    SetFlowControl,
    Stream,
    StreamEvent,
    StreamRequest,
    Submit,
)
from legato.engine.text_intake import TextIntake
from legato.errors import GenerationError, LegatoError
from legato.models.codec.state import CodecStatePool
from legato.models.talker.state import TalkerCache
from legato.models.voice import ClonedVoice
from legato.text.budget import Watchdog
from legato.text.segmenter import Segmenter, SegmentRule
from legato.types import (
    FinishReason,
    Frame,
    Packet,
    PromptSpec,
    SamplingParams,
    SequenceId,
    StreamId,
    TextLayout,
    TextToken,
)
from tests.engine.tiny import LetterTokenizer, tiny_backend, tiny_decoder
from tests.models.tiny_talker import stack

GREEDY = SamplingParams(0.0, 0, 1.0, 1.0, 0.0, 0, 1.0)
WARM = SamplingParams(0.9, 12, 1.0, 1.05, 0.9, 12, 1.0)
SHORT = SegmentRule(paragraph_chars=4, target_chars=8, max_chars=40)
LONG = SegmentRule(paragraph_chars=4000, target_chars=5000, max_chars=9000)


class RecordingRunner(ModelRunner):
    """Runner with tiny models that records its prefill slices, and its frames by the seed of their sequence."""

    def __init__(self, pool: KVPool, rows_per_call: int, prefixes: PrefixCache) -> None:
        rows = RowsPerCall.uniform(rows_per_call)
        super().__init__(tiny_backend(), pool, rows_per_call=rows, prefixes=prefixes)
        self.prefilled: list[tuple[int, int, int]] = []
        self.generated: dict[int, list[Frame]] = {}

    def prefill(self, slices: Sequence[tuple[TalkerSequence, int, int]]) -> list[TalkerSequence]:
        self.prefilled += [(sequence.seed, start, length) for sequence, start, length in slices]
        return super().prefill(slices)

    def predict_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        frames = super().predict_frames(sequences)
        for sequence, frame in zip(sequences, frames, strict=True):
            if isinstance(frame, tuple):
                self.generated.setdefault(sequence.seed, []).append(frame)
        return frames


class ScriptedRunner(ModelRunner):
    """Runner whose output comes from `script(seed, frame)`: a frame, a finish reason, or an error."""

    def __init__(self, pool: KVPool, script: Callable[[int, int], Frame | FinishReason | GenerationError]) -> None:
        rows = RowsPerCall.uniform(64)
        super().__init__(tiny_backend(), pool, rows_per_call=rows, prefixes=PrefixCache(0))
        self._script = script
        self.steps = 0

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        self.steps += len(sequences)
        super().step(sequences)

    def sample_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        outcomes: list[int | FinishReason | GenerationError] = []
        for sequence in sequences:
            line = self._script(sequence.seed, sequence.frames)
            outcomes.append(line[0] if isinstance(line, tuple) else line)
        return outcomes

    def predict_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        frames: list[Frame | GenerationError] = []
        for sequence in sequences:
            line = self._script(sequence.seed, sequence.frames)
            assert not isinstance(line, FinishReason)
            frames.append(line)
        self.frames_sampled += len(sequences)
        return frames


@dataclass
class Received:
    """Events that one client received."""

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
    """An engine core that is stepped by the test."""

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
        yield_s: float = 1.0,
        parked_bytes: int = 2**30,
        frame_s: float = 0.0,
    ) -> None:
        """`frame_s`: duration of a frame, which decides the sample rate; 0: 24 kHz, where tiny frames take 1 ms."""
        rate_hz = round(tiny_decoder().frame_samples / frame_s) if frame_s else 24000
        self.now_s = 0.0
        self.tick_s = tick_s
        self.kv = KVPool(TalkerCache.allocate(stack(), streams + 1, positions, torch.float32), poison=True)
        self.codec = CodecPool(CodecStatePool(tiny_decoder().initial_history(streams)))
        self.prefixes = PrefixCache(prefix_bytes)
        self.runner: ModelRunner = (
            ScriptedRunner(self.kv, script) if script else RecordingRunner(self.kv, rows_per_call, self.prefixes)
        )
        self.codec_runner = CodecRunner(tiny_backend(), self.codec, rows_per_call=rows_per_call)
        self.registry = StreamRegistry(self.runner, self.codec, rate_hz)
        self._pending: list[Command] = []
        context = EngineContext(
            runner=self.runner,
            codec=self.codec_runner,
            clock=lambda: self.now_s,
            prefill_limits=(prefill_positions, prefill_positions),
            sample_rate_hz=rate_hz,
            frame_audio_s=0.08,
            max_batch_size=rows,
            yield_s=yield_s,
            parked_bytes=parked_bytes,
            adaptive=adaptive,
            poll_commands=self._take_pending,
        )
        self.core = EngineCore(context, self.registry)
        self.segments = segments
        self.streams: list[Stream] = []
        self._sequences = 0

    def submit(
        self,
        text: str = "",
        *,
        seed: int = 0,
        ended: bool = True,
        sampling: SamplingParams = GREEDY,
        packets: tuple[int, ...] = (1, 2, 4),
        max_frames: int = 0,
        layout: TextLayout = TextLayout.STREAMING,
        flow_control: FlowControl = UNLIMITED,
        instruct: tuple[TextToken, ...] = (),
        voice: ClonedVoice | None = None,
    ) -> tuple[StreamId, Received]:
        """Queue a stream and its text for the next step."""
        spec = PromptSpec(
            language="auto",
            speaker="",
            layout=layout,
            instruct=instruct,
            speaker_vector=voice is not None,
            reference_text=voice.reference_text if voice is not None else (),
            reference_frames=voice.frames if voice is not None else 0,
        )
        request = StreamRequest(
            spec=spec,
            sampling=sampling,
            seed=seed,
            packets=PacketPolicy(packets),
            max_frames=max_frames,
            voice=voice,
            flow_control=flow_control,
        )
        received = Received()
        stream_id = StreamId(len(self.streams))
        stream = Stream(
            id=stream_id,
            request=request,
            intake=TextIntake(Segmenter(self.segments), lambda number: self._sequence(stream_id, number, request)),
            on_event=received.events.append,
            timing=StreamTiming(),
            watchdog=Watchdog(),
        )
        self.streams.append(stream)
        self._pending.append(Submit(stream, self.now_s))
        if text:
            self.append(stream_id, text)
        if ended:
            self.end(stream_id)
        return stream_id, received

    def append(self, stream: StreamId, text: str) -> None:
        self._pending.append(AppendText(stream, text))

    def end(self, stream: StreamId) -> None:
        self._pending.append(EndText(stream))

    def cancel(self, stream: StreamId) -> None:
        self._pending.append(Cancel(stream))

    def set_flow_control(self, stream: StreamId, flow_control: FlowControl, consumed: int = 0) -> None:
        self._pending.append(SetFlowControl(stream, flow_control, consumed))

    def report_consumed(self, stream: StreamId, frames: int) -> None:
        self._pending.append(Consumed(stream, frames))

    def step(self) -> bool:
        """Advance the clock by one tick and run one engine step."""
        self.now_s += self.tick_s
        with torch.inference_mode():
            return self.core.step(self._take_pending())

    def _take_pending(self) -> list[Command]:
        commands, self._pending = self._pending, []
        return commands

    def run(self, max_steps: int = 3000) -> None:
        """Step until the engine is idle."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def codes(self, seed: int) -> list[Frame]:
        """The frames that the tiny talker generated for the sequences with `seed`."""
        assert isinstance(self.runner, RecordingRunner)
        return self.runner.generated.get(seed, [])

    def assert_all_slots_free(self) -> None:
        """All slots are released and no stream is active."""
        assert len(self.registry) == 0
        assert self.kv.all_free
        assert self.codec.all_free

    def _sequence(self, stream: StreamId, number: int, request: StreamRequest) -> TalkerSequence:
        self._sequences += 1
        return TalkerSequence(
            id=SequenceId(self._sequences),
            stream=stream,
            number=number,
            tokenizer=LetterTokenizer(),
            spec=request.spec,
            sampling=request.sampling,
            seed=request.seed,
            ends_with_text=False,
        )
