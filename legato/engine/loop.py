"""One turn of the engine: take, plan, run, decode, emit, retire.

Owns the streams between their submission and their end, and is the only caller of the runner and of the codec stage.
Runs in one thread; decides nothing itself (`scheduler`, `framing` and `endings` do) and knows no client beyond its
sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from legato.engine.commands import AppendText, Cancel, Command, EndText, SetDemand, Submit
from legato.engine.decode import CodecStage, Window
from legato.engine.endings import end_after_frame, frame_limit, prompt_of
from legato.engine.packets import make_packet
from legato.engine.roster import Roster
from legato.engine.runner import Runner
from legato.engine.scheduler import Capacity, Plan, SequenceView, plan_turn
from legato.engine.sequence import Seat, Sequence, SequenceEvent, SequenceState, text_to_feed
from legato.engine.stats import Mark
from legato.engine.stream import Stream
from legato.errors import GenerationError, LegatoError
from legato.flow import FinishReason, Frame, PromptPlan, SequenceId


@dataclass(frozen=True, slots=True)
class Machinery:
    """What a loop drives: the talker side, the codec side, a monotonic clock in seconds, and two limits."""

    runner: Runner
    codec: CodecStage
    clock: Callable[[], float]
    prefill_positions: int
    sample_rate_hz: int


class Loop:
    """Streams in, packets out, a turn at a time."""

    def __init__(self, machinery: Machinery, roster: Roster) -> None:
        self._m = machinery
        self._roster = roster
        self._prompts: dict[SequenceId, PromptPlan] = {}

    def turn(self, commands: Iterable[Command]) -> bool:
        """Do one turn; False when nothing was there to do, so that the caller may wait for a command."""
        for command in commands:
            self._take(command)
        plan = self._plan()
        self._run(plan)
        decoded = self._decode()
        self._retire()
        return decoded or not plan.idle

    # --- take ---------------------------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        """Carry out one of the client's commands. One for a stream that is over comes too late and means nothing."""
        if isinstance(command, Submit):
            command.stream.timing.mark(Mark.RECEIVED, command.received_s)
            self._roster.add(command.stream)
            return
        for stream in self._roster.of(command.stream):
            try:
                match command:
                    case AppendText(text=text):
                        stream.intake.append(text)
                    case EndText():
                        stream.intake.end()
                    case SetDemand(frames=frames):
                        stream.demand_frames = frames
                    case Cancel():
                        self._roster.cancel(stream)
            except LegatoError as error:
                self._roster.fail(stream, error)

    # --- plan ---------------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """Ask the scheduler what to do with everything that is not over."""
        self._prompts = {}
        views = [self._view(stream, each) for stream in self._roster.streams() for each in self._live(stream)]
        seated = frozenset(stream.id for stream in self._roster.streams() if stream.leases)
        runner, codec = self._m.runner, self._m.codec
        return plan_turn(views, seated, Capacity(runner.pool.free, codec.pool.free, self._m.prefill_positions))

    def _live(self, stream: Stream) -> list[Sequence]:
        """The stream's sequences that the talker still has to do with."""
        return [each for each in stream.sequences if not each.has_ended]

    def _view(self, stream: Stream, sequence: Sequence) -> SequenceView:
        state = sequence.state
        if state is SequenceState.WAITING:
            self._look_for_prompt(stream, sequence)
        prompt = self._prompts.get(sequence.id) or (sequence.seat.plan if sequence.seats else None)
        if sequence.frames and state in (SequenceState.RUNNING, SequenceState.WAITING_FOR_TEXT):
            self._look_for_text(stream, sequence)
        return SequenceView(
            sequence=sequence.id,
            stream=stream.id,
            state=sequence.state,
            head=stream.is_head(sequence),
            prompt_positions=len(prompt.rows) if prompt else 0,
            positions=sequence.seat.positions if sequence.seats else 0,
            primed=sequence.state is SequenceState.RUNNING and not sequence.frames,
            can_step=sequence.state is SequenceState.RUNNING and bool(sequence.frames),
            wanted=stream.wants_more(),
        )

    def _look_for_prompt(self, stream: Stream, sequence: Sequence) -> None:
        """Build a waiting sequence's prompt once its text suffices; refuse it before any compute if it cannot fit."""
        try:
            for plan in prompt_of(sequence, stream.request, self._m.runner.config, self._m.runner.positions):
                self._prompts[sequence.id] = plan
                stream.timing.mark(Mark.ENOUGH_TEXT, self._m.clock())
        except LegatoError as error:
            self._roster.fail(stream, error)

    def _look_for_text(self, stream: Stream, sequence: Sequence) -> None:
        """Move between running and waiting for text as the track allows, counting the wait."""
        has_text = bool(text_to_feed(sequence.seat.plan, sequence.track, sequence.frames - 1))
        if sequence.state is SequenceState.RUNNING and not has_text:
            sequence.take(SequenceEvent.TEXT_MISSING)
            stream.timing.text_wait_began(self._m.clock())
        elif sequence.state is SequenceState.WAITING_FOR_TEXT and has_text:
            sequence.take(SequenceEvent.TEXT_ARRIVED)
            stream.timing.text_wait_ended(self._m.clock())

    # --- run ----------------------------------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> None:
        """Seat, prefill, step the talker, then draw the frames of every row that has a fresh hidden state."""
        for sequence_id in plan.admit:
            self._seat(sequence_id)
        runner = self._m.runner
        slices = [(self._roster.find(piece.sequence)[1], piece.start, piece.length) for piece in plan.prefill]
        fresh = [self._roster.find(sequence.id) for sequence in runner.prefill(slices)]
        for stream, sequence in fresh:
            sequence.take(SequenceEvent.PREFILLED)
            stream.timing.mark(Mark.PREFILLED, self._m.clock())
        beginning = [self._roster.find(each) for each in plan.begin]
        beginning += [(stream, each) for stream, each in fresh if stream.is_head(each) and stream.wants_more()]
        stepping = [self._roster.find(each) for each in plan.step]
        runner.step([sequence for _, sequence in stepping])
        self._draw(beginning + stepping)

    def _seat(self, sequence_id: SequenceId) -> None:
        """Lease what an admitted sequence needs; its stream gets its codec slot with its first sequence."""
        stream, sequence = self._roster.find(sequence_id)
        sequence.take(SequenceEvent.ADMIT)
        plan = self._prompts[sequence_id]
        sequence.seats.append(Seat(lease=self._m.runner.pool.acquire(sequence_id), plan=plan))
        self._m.runner.seat(sequence, stream.request.voices)
        if not stream.leases:
            start = [history for voice in stream.request.voices for history in voice.histories]
            stream.leases.append(self._m.codec.pool.acquire(stream.id, start))
        stream.timing.mark(Mark.ADMITTED, self._m.clock())

    def _draw(self, rows: list[tuple[Stream, Sequence]]) -> None:
        """First codes, then whole frames; a row that ends or fails here leaves at once."""
        if not rows:
            return
        runner, now = self._m.runner, self._m.clock
        drawn = runner.draw_first_codes([sequence for _, sequence in rows])
        speaking: list[tuple[Stream, Sequence]] = []
        for (stream, sequence), outcome in zip(rows, drawn, strict=True):
            stream.timing.mark(Mark.FIRST_CODE, now())
            if sequence.has_ended:
                continue  # its stream failed with another of its sequences, just now
            if isinstance(outcome, GenerationError):
                self._roster.fail(stream, outcome)
            elif isinstance(outcome, FinishReason):
                self._roster.end(sequence, outcome)
            else:
                speaking.append((stream, sequence))
        frames = runner.draw_frames([sequence for _, sequence in speaking])
        for (stream, sequence), drawn_frame in zip(speaking, frames, strict=True):
            stream.timing.mark(Mark.FIRST_FRAME, now())
            if sequence.has_ended:
                continue
            if isinstance(drawn_frame, GenerationError):
                self._roster.fail(stream, drawn_frame)
            else:
                self._accept(stream, sequence, drawn_frame)

    def _accept(self, stream: Stream, sequence: Sequence, frame: Frame) -> None:
        """Count a new frame, hand it to the codec's queue, and see whether the sequence ends with it."""
        try:
            self._m.codec.check([frame])
        except LegatoError as error:
            self._roster.fail(stream, error)
            return
        sequence.seat.unfed[:] = [frame]
        sequence.frames += 1
        sequence.undecoded.append(frame)
        limit = frame_limit(sequence, stream.request, stream.frames, self._m.runner.positions)
        for reason in end_after_frame(sequence, stream.watchdog.observe_frame(frame), limit):
            self._roster.end(sequence, reason)
            if reason is FinishReason.MAX_FRAMES:
                self._roster.drop_rest(stream, sequence, reason)

    # --- decode and emit ----------------------------------------------------------------------------------------------

    def _decode(self) -> bool:
        """Decode at most one window of each stream, all in one codec batch, and hand their packets over."""
        windows: list[tuple[Stream, Window]] = []
        for stream in self._roster.streams():
            frames = stream.take_window() if stream.leases else []
            if frames:
                stream.timing.mark(Mark.FIRST_WINDOW, self._m.clock())
                windows.append((stream, Window(stream.leases[0], tuple(frames))))
        if windows:
            samples = self._m.codec.decode([window for _, window in windows])
            for (stream, window), each in zip(windows, samples, strict=True):
                self._emit(stream, window, each)
        return bool(windows)

    def _emit(self, stream: Stream, window: Window, samples: npt.NDArray[np.float32]) -> None:
        """Hand a packet over, with the finish reason if nothing can follow it."""
        self._watch(stream, samples, len(window.frames))
        last = stream.generation_over and not stream.ready_frames()
        try:
            packet = make_packet(
                stream.id,
                samples,
                first_sample=stream.samples,
                frames=len(window.frames),
                sample_rate_hz=self._m.sample_rate_hz,
                reasons=[stream.finish_reason()] if last else [],
            )
        except LegatoError as error:
            self._roster.fail(stream, error)
            return
        stream.samples += packet.sample_count
        stream.packets += 1
        stream.timing.packet(self._m.clock())
        stream.closed = last
        stream.sink(packet)

    def _watch(self, stream: Stream, samples: npt.NDArray[np.float32], frames: int) -> None:
        """Show the watchdog how loud each frame is; what it ends is the sequence that speaks now."""
        levels = np.sqrt(np.mean(np.square(samples.reshape(frames, -1)), axis=1))
        for level in levels.tolist():
            for reason in stream.watchdog.observe_level(level):
                for sequence in self._live(stream)[:1]:
                    if sequence.state is SequenceState.RUNNING:
                        self._roster.end(sequence, reason)

    # --- retire -------------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Finish what was decoded to its end, and forget the streams that are over."""
        for stream in self._roster.streams():
            for sequence in stream.sequences:
                if sequence.state is SequenceState.DRAINING and not sequence.undecoded:
                    sequence.take(SequenceEvent.DRAINED)
            if stream.generation_over and not stream.closed and not stream.ready_frames():
                self._roster.say_last(stream, stream.finish_reason())
            if stream.closed:
                self._roster.forget(stream)
