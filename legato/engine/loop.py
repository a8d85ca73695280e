"""One turn of the engine: take, plan, run, decode, emit, retire.

Owns the streams between their submission and their end, and is the only caller of the runner and of the codec stage.
Runs in one thread; decides nothing itself (`scheduler`, `framing` and `endings` do) and knows no client beyond its
sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from legato.engine.commands import AppendText, Cancel, Command, Drain, EndText, SetDemand, Submit, Taken
from legato.engine.demand import UNLIMITED
from legato.engine.emission import Emission
from legato.engine.endings import end_after_frame, frame_limit, prompt_of
from legato.engine.machinery import Machinery
from legato.engine.prefixes import shared_positions
from legato.engine.roster import Roster
from legato.engine.scheduler import Capacity, Plan, SequenceView, plan_turn
from legato.engine.sequence import Seat, Sequence, SequenceEvent, SequenceState, text_to_feed
from legato.engine.stats import Mark, Part
from legato.engine.stream import Stream
from legato.errors import GenerationError, LegatoError, StateError
from legato.flow import FinishReason, Frame, SequenceId

__all__ = ["Loop", "Machinery"]

LOOK_AHEAD = 2
"""Sequences of a stream that a turn looks at: the one that speaks, and the next, which is prefilled ahead."""
READING_S = 0.004
"""A turn reads text for this long; what is left is read in the next turns, while others speak."""

_Row = tuple[Stream, Sequence]


class Loop:
    """Streams in, packets out, a turn at a time."""

    def __init__(self, machinery: Machinery, roster: Roster) -> None:
        self._m = machinery
        self._roster = roster
        self._emission = Emission(machinery, roster)
        self._turns = 0
        self._began_s = 0.0
        self._busy = False
        self._seen: dict[SequenceId, _Row] = {}

    def turn(self, commands: Iterable[Command]) -> bool:
        """Do one turn; False when nothing was there to do, so that the caller may wait for a command."""
        now_s = self._m.clock()
        turn_s = now_s - self._began_s if self._busy else 0.0
        self._began_s = now_s
        self._take(commands)
        reading = self._read()
        plan = self._plan()
        self._run(plan)
        late = self._take(self._m.more())  # a cancel that came meanwhile spares the decode
        decoded = self._emission.decode(turn_s)
        self._retire()
        self._turns += 1
        self._busy = reading or late or decoded or not plan.idle
        return self._busy

    # --- take ---------------------------------------------------------------------------------------------------------

    def _take(self, commands: Iterable[Command]) -> bool:
        """Carry out the clients' commands; True if there was one. For a stream that is over it comes too late."""
        took = False
        for command in commands:
            took = True
            if isinstance(command, Submit):
                command.stream.timing.mark(Mark.RECEIVED, command.received_s)
                self._roster.add(command.stream)
                continue
            for stream in self._roster.of(command.stream):
                try:
                    self._obey(stream, command)
                except LegatoError as error:
                    self._roster.fail(stream, error)
        return took

    def _obey(self, stream: Stream, command: AppendText | EndText | Cancel | SetDemand | Taken | Drain) -> None:
        match command:
            case AppendText(text=text):
                stream.intake.append(text)
            case EndText():
                stream.intake.end()
            case SetDemand(demand=demand, taken=taken):
                stream.demands[:] = [demand]
                stream.taken = max(stream.taken, taken)
            case Taken(frames=frames):
                stream.taken = max(stream.taken, frames)
            case Drain():
                stream.intake.seal()
                stream.demands[:] = [UNLIMITED]
            case Cancel():
                self._roster.cancel(stream)

    def _read(self) -> bool:
        """Streams read their text piece by piece in turn, while there is time; True if any was read."""
        unread = deque(stream for stream in self._roster.streams() if stream.intake.has_work)
        unread.rotate(-(self._turns % len(unread)) if unread else 0)
        until_s = self._m.clock() + READING_S
        read = bool(unread)
        while unread and self._m.clock() <= until_s:
            stream = unread.popleft()
            try:
                stream.intake.read()
            except Exception as error:  # boundary: reading works for this stream alone, so it fails this stream alone
                self._roster.fail(stream, error)
                continue
            if stream.intake.has_work:
                unread.append(stream)
        return read

    # --- plan ---------------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """Ask the scheduler what to do with everything that is not over."""
        for stream in self._roster.streams():
            for sequence in stream.live(LOOK_AHEAD):
                self._look(stream, sequence)
        self._seen = {each.id: (stream, each) for stream in self._roster.streams() for each in stream.live(LOOK_AHEAD)}
        views = [self._view(stream, each) for stream, each in self._seen.values()]
        seated = frozenset(stream.id for stream in self._roster.streams() if stream.leases)
        runner, codec = self._m.runner, self._m.codec
        capacity = Capacity(runner.pool.free, codec.pool.free, *self._m.prefill_per_turn, self._m.rows)
        return plan_turn(views, seated, capacity)

    def _look(self, stream: Stream, sequence: Sequence) -> None:
        """See what has become of the sequence's text."""
        if sequence.state is SequenceState.WAITING and not sequence.prompts:
            self._look_for_prompt(stream, sequence)
        if sequence.frames and sequence.state in (SequenceState.RUNNING, SequenceState.WAITING_FOR_TEXT):
            self._look_for_text(stream, sequence)

    def _view(self, stream: Stream, sequence: Sequence) -> SequenceView:
        running = sequence.state is SequenceState.RUNNING
        return SequenceView(
            sequence=sequence.id,
            stream=stream.id,
            state=sequence.state,
            head=stream.is_head(sequence),
            prompt_positions=len(sequence.prompts[0].rows) if sequence.prompts else 0,
            positions=sequence.seat.positions if sequence.seats else 0,
            shared_positions=shared_positions(sequence.prompts[0]) if sequence.prompts else 0,
            primed=running and not sequence.frames,
            can_step=running and bool(sequence.frames),
            wanted=stream.wants_more(),
            slack_s=stream.slack_s(self._m.clock()),
        )

    def _look_for_prompt(self, stream: Stream, sequence: Sequence) -> None:
        """Build a waiting sequence's prompt once its text suffices; refuse it before any compute if it cannot fit."""
        try:
            sequence.prompts += prompt_of(sequence, stream.request, self._m.runner.config, self._m.runner.positions)
        except LegatoError as error:
            self._roster.fail(stream, error)
            return
        if sequence.prompts:
            stream.timing.mark(Mark.ENOUGH_TEXT, self._m.clock())

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
        for each in plan.admit:
            self._seat(*self._seen[each])
        runner, stats = self._m.runner, self._roster.stats
        slices = [
            (sequence, piece.start, piece.length)
            for piece in plan.prefill
            for _, sequence in self._seated([piece.sequence])
            if sequence.seat.positions == piece.start  # else its start was kept, and the next turn goes on from there
        ]
        prefilled = self._m.timed(stats, Part.PREFILL, len(slices), lambda: runner.prefill(slices))
        fresh = [self._seen[each.id] for each in prefilled]
        for stream, sequence in fresh:
            sequence.take(SequenceEvent.PREFILLED)
            stream.timing.mark(Mark.PREFILLED, self._m.clock())
        beginning = self._seated(plan.begin)
        beginning += [(stream, each) for stream, each in fresh if stream.is_head(each) and stream.wants_more()]
        stepping = self._seated(plan.step)
        sequences = [sequence for _, sequence in stepping]
        self._m.timed(stats, Part.TALKER, len(sequences), lambda: runner.step(sequences))
        self._draw(beginning + stepping)

    def _seated(self, planned: Iterable[SequenceId]) -> list[_Row]:
        """Those that still have their seat: a stream may have failed since the plan was made."""
        return [row for row in map(self._seen.__getitem__, planned) if row[1].seats]

    def _seat(self, stream: Stream, sequence: Sequence) -> None:
        """Lease what an admitted sequence needs; its stream gets its codec slot with its first sequence."""
        sequence.take(SequenceEvent.ADMIT)
        sequence.seats.append(Seat(lease=self._m.runner.pool.acquire(sequence.id), plan=sequence.prompts[0]))
        try:
            self._m.runner.seat(sequence, stream.request.voices)
            if not stream.leases:
                start = [history for voice in stream.request.voices for history in voice.histories]
                stream.leases.append(self._m.codec.pool.acquire(stream.id, start))
        except Exception as error:  # boundary: seating computes for this stream alone, so it fails this stream alone
            self._roster.fail(stream, error)
            return
        stream.timing.mark(Mark.ADMITTED, self._m.clock())

    def _draw(self, rows: list[_Row]) -> None:
        """First codes, then whole frames; a row that ends or fails here leaves at once."""
        if not rows:
            return
        runner, stats, now = self._m.runner, self._roster.stats, self._m.clock
        drawn = runner.draw_first_codes([sequence for _, sequence in rows])
        speaking: list[_Row] = []
        for (stream, sequence), outcome in zip(rows, drawn, strict=True):
            stream.timing.mark(Mark.FIRST_CODE, now())
            if isinstance(outcome, GenerationError):
                self._roster.fail(stream, outcome)
            elif isinstance(outcome, FinishReason):
                self._roster.end(sequence, outcome)
            else:
                speaking.append((stream, sequence))
        sequences = [sequence for _, sequence in speaking]
        frames = self._m.timed(stats, Part.PREDICTOR, len(sequences), lambda: runner.draw_frames(sequences))
        for (stream, sequence), frame in zip(speaking, frames, strict=True):
            stream.timing.mark(Mark.FIRST_FRAME, now())
            if isinstance(frame, GenerationError):
                self._roster.fail(stream, frame)
            else:
                self._accept(stream, sequence, frame)

    def _accept(self, stream: Stream, sequence: Sequence, frame: Frame) -> None:
        """Count a new frame, hand it to the codec's queue, and see whether the sequence ends with it."""
        try:
            self._m.codec.check([frame])
        except LegatoError as error:
            self._roster.fail(stream, error)
            return
        sequence.seat.unfed[:] = [frame]
        sequence.frames += 1
        stream.frames += 1
        sequence.undecoded.append(frame)
        limit = frame_limit(sequence, stream.request, stream.frames, self._m.runner.positions)
        for reason in end_after_frame(sequence, stream.watchdog.observe_frame(frame), limit):
            self._roster.end(sequence, reason)
            if reason is FinishReason.MAX_FRAMES:
                self._roster.drop_rest(stream, sequence, reason)

    # --- retire -------------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Finish what was decoded to its end, and forget the streams that are over."""
        for stream in self._roster.streams():
            stream.retire()
            if stream.generation_over and not stream.closed and not stream.ready_frames():
                self._roster.say_last(stream, stream.finish_reason())
            if stream.closed:
                self._roster.forget(stream)
        if not len(self._roster):
            self._check_balance()

    def _check_balance(self) -> None:
        """`StateError` if something is held although nobody is here: better loud now than slower for ever."""
        runner, codec = self._m.runner, self._m.codec
        if not (runner.pool.balanced and codec.pool.balanced) or runner.seated:
            raise StateError(
                f"nobody speaks, and not given back are talker slots ({runner.pool.free} are free), codec slots "
                f"({codec.pool.free} are free) or the values of sequences ({runner.seated})"
            )
