"""Engine step: apply client commands, schedule, run the talker and code predictor, decode audio, retire streams.

Runs on the engine thread, which owns all active streams. Policy is in `scheduler`, `packetizer` and
`stop_conditions`; this module executes it.

An error in the work of one stream fails only that stream. An error in the work of a whole batch, such as a device
failure, propagates out of `step`; `Engine` then ends all streams.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext

from legato.engine.context import EngineContext
from legato.engine.flow_control import UNLIMITED
from legato.engine.kv_cache import cacheable_prefix_len
from legato.engine.output import OutputStage
from legato.engine.parking import Parking
from legato.engine.registry import StreamRegistry
from legato.engine.scheduler import Capacity, Plan, SequenceView, plan_step
from legato.engine.sequence import KVSlot, Sequence, SequenceEvent, SequenceState, text_token_after
from legato.engine.stats import Mark, StepPhase
from legato.engine.stop_conditions import build_prompt, end_after_frame, frame_limit
from legato.engine.stream import (
    AppendText,
    Cancel,
    Command,
    Consumed,
    Drain,
    EndText,
    SetFlowControl,
    Stream,
    StreamCommand,
    Submit,
)
from legato.errors import GenerationError, LegatoError, StateError
from legato.kernels.threads import single_torch_thread
from legato.types import FinishReason, Frame, SequenceId, StreamId

__all__ = ["EngineContext", "EngineCore"]

SEQUENCES_PER_STREAM = 2
"""Sequences of a stream that a step can schedule: the head, and the next one, which may be prefilled ahead."""
TEXT_BUDGET_S = 0.004
"""Time for text processing in one step. Remaining text is processed in later steps, so that the step stays short."""

_Row = tuple[Stream, Sequence]


class EngineCore:
    """Runs the engine one step at a time."""

    def __init__(self, context: EngineContext, registry: StreamRegistry) -> None:
        self._context = context
        self._registry = registry
        self._output = OutputStage(context, registry)
        self._parking = Parking(context, registry.stats, context.parked_bytes)
        self._steps = 0
        self._step_start_s = 0.0
        self._busy = False
        self._rows: dict[SequenceId, _Row] = {}
        self.wake_in_s = math.inf
        """After a step without work: when the next step has some even without a command."""

    def step(self, commands: Iterable[Command]) -> bool:
        """Run one step. Returns False if there was nothing to do, so that the caller may wait for a command."""
        with nullcontext() if self._context.needs_torch_threads else single_torch_thread():
            return self._step(commands)

    def _step(self, commands: Iterable[Command]) -> bool:
        now_s = self._context.clock()
        step_s = now_s - self._step_start_s if self._busy else 0.0
        self._step_start_s = now_s
        self._apply_commands(commands)
        processed_text = self._process_text()
        plan = self._schedule()
        self.wake_in_s = plan.wake_in_s
        run_start_s = self._context.clock()
        self._run(plan)
        if plan.step and not plan.prefill:
            self._output.add_step(self._context.clock() - run_start_s)
        # Commands that arrived during the step: a cancel takes effect before its stream is decoded.
        late = self._apply_commands(self._context.poll_commands())
        decoded = self._output.decode(step_s)
        self._retire()
        self._steps += 1
        self._busy = processed_text or late or decoded or not plan.idle
        return self._busy

    # --- commands -----------------------------------------------------------------------------------------------------

    def _apply_commands(self, commands: Iterable[Command]) -> bool:
        """Apply all commands; True if there was at least one. Commands for a stream that has ended are ignored."""
        any_command = False
        for command in commands:
            any_command = True
            if isinstance(command, Submit):
                command.stream.timing.mark(Mark.RECEIVED, command.received_s)
                self._registry.add(command.stream)
                continue
            stream = self._registry.get(command.stream)
            if stream is None:
                continue
            try:
                self._apply(stream, command)
            except Exception as error:  # boundary: a command belongs to one stream, so only that stream fails
                self._registry.fail(stream, error)
        return any_command

    def _apply(self, stream: Stream, command: StreamCommand) -> None:
        match command:
            case AppendText(text=text):
                stream.intake.append(text)
            case EndText():
                stream.intake.end()
            case SetFlowControl(flow_control=flow_control, consumed=consumed):
                stream.flow_control = flow_control
                stream.consumed = max(stream.consumed, consumed)
            case Consumed(frames=frames):
                stream.consumed = max(stream.consumed, frames)
            case Drain():
                stream.intake.seal()
                stream.flow_control = UNLIMITED
            case Cancel():
                self._registry.cancel(stream)

    def _process_text(self) -> bool:
        """Process text round-robin, one piece of each stream at a time, within the time budget."""
        pending = deque(stream for stream in self._registry.streams() if stream.intake.has_work)
        if not pending:
            return False
        pending.rotate(-(self._steps % len(pending)))  # start with another stream in each step
        deadline_s = self._context.clock() + TEXT_BUDGET_S
        while pending and self._context.clock() <= deadline_s:
            stream = pending.popleft()
            try:
                stream.intake.process()
            except Exception as error:  # boundary: the text belongs to one stream, so only that stream fails
                self._registry.fail(stream, error)
                continue
            if stream.intake.has_work:
                pending.append(stream)
        return True

    # --- schedule -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> Plan:
        """Update all sequences from their text, and plan the step."""
        for stream in self._registry.streams():
            for sequence in _schedulable_sequences(stream):
                self._update(stream, sequence)
        # Collected again, because a stream may have failed in the loop above.
        self._rows = {
            each.id: (stream, each) for stream in self._registry.streams() for each in _schedulable_sequences(stream)
        }
        views = [self._view(stream, sequence) for stream, sequence in self._rows.values()]
        waiting_to_decode = self._lease_for_last_frames()
        holders = self._parking.holders(self._registry.streams())
        prefill_positions, urgent_prefill_positions = self._context.prefill_limits
        capacity = Capacity(
            free_kv=self._context.runner.pool.free,
            free_codec=self._context.codec.pool.free,
            prefill_positions=prefill_positions,
            urgent_prefill_positions=urgent_prefill_positions,
            max_batch_size=self._context.max_batch_size,
            yield_s=self._context.yield_s,
            waiting_to_decode=waiting_to_decode,
        )
        return plan_step(views, holders, capacity)

    def _lease_for_last_frames(self) -> int:
        """Lease a codec slot for each parked stream that has only frames left to decode; returns how many get none.

        Such a stream has no sequence that the scheduler could admit: it was parked while its last frames waited for
        more text, and the text has ended. They come before new streams, because they need the slot for one step.
        """
        waiting = 0
        for stream in self._registry.streams():
            if stream.parked_history is None or not stream.generation_over or not stream.ready_frames():
                continue
            if not self._context.codec.pool.free:
                waiting += 1
                continue
            try:
                self._parking.lease(stream)
            except Exception as error:  # boundary: the slot belongs to one stream, so only that stream fails
                self._registry.fail(stream, error)
        return waiting

    def _update(self, stream: Stream, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING and sequence.prompt is None:
            self._build_prompt(stream, sequence)
        if sequence.frames and sequence.state in (
            SequenceState.RUNNING,
            SequenceState.WAITING_FOR_TEXT,
            SequenceState.PARKED,
        ):
            self._update_text_wait(stream, sequence)

    def _view(self, stream: Stream, sequence: Sequence) -> SequenceView:
        running, prompt = sequence.state is SequenceState.RUNNING, sequence.prompt
        parked = sequence.state is SequenceState.PARKED
        return SequenceView(
            sequence=sequence.id,
            stream=stream.id,
            state=sequence.state,
            head=stream.head() is sequence,
            prompt_positions=0 if prompt is None else len(prompt.rows),
            computed_positions=sequence.slot.computed_positions if sequence.has_slot else 0,
            cacheable_prefix_len=0 if prompt is None else cacheable_prefix_len(prompt),
            prefilled=running and not sequence.frames,
            can_step=(running and bool(sequence.frames)) or (parked and not stream.timing.waiting_for_text),
            may_generate=stream.may_generate() if stream.parked_history is None else stream.may_resume(),
            slack_s=stream.slack_s(self._context.clock()),
            parked=stream.parked_history is not None,
        )

    def _build_prompt(self, stream: Stream, sequence: Sequence) -> None:
        """Build the prompt once there is enough text. A prompt that is too long fails the stream before prefill."""
        runner = self._context.runner
        try:
            sequence.prompt = build_prompt(sequence, stream.request, runner.config, runner.max_seq_len)
        except LegatoError as error:
            self._registry.fail(stream, error)
            return
        if sequence.prompt is not None:
            stream.timing.mark(Mark.ENOUGH_TEXT, self._context.clock())

    def _update_text_wait(self, stream: Stream, sequence: Sequence) -> None:
        """Change between RUNNING and WAITING_FOR_TEXT, and measure the time spent waiting, including parked time."""
        assert sequence.prompt is not None, "a sequence with frames has a prompt"
        has_text = text_token_after(sequence.prompt, sequence.tokenizer, sequence.frames - 1) is not None
        if sequence.state is SequenceState.PARKED:
            if has_text and stream.timing.waiting_for_text:
                stream.timing.text_wait_ended(self._context.clock())
        elif sequence.state is SequenceState.RUNNING and not has_text:
            sequence.apply(SequenceEvent.TEXT_MISSING)
            stream.timing.text_wait_began(self._context.clock())
        elif sequence.state is SequenceState.WAITING_FOR_TEXT and has_text:
            sequence.apply(SequenceEvent.TEXT_ARRIVED)
            stream.timing.text_wait_ended(self._context.clock())

    # --- run ----------------------------------------------------------------------------------------------------------

    def _run(self, plan: Plan) -> None:
        """Allocate slots, prefill, step the talker, then generate a frame for each row with a new hidden state."""
        for stream_id in plan.park:
            self._park(stream_id)
        for sequence_id in plan.admit:
            self._allocate_slot(*self._rows[sequence_id])
        runner, stats = self._context.runner, self._registry.stats
        # After a prefix cache hit the computed positions differ from the plan. Prefill of that prompt then continues
        # in the next step.
        slices = [
            (sequence, piece.start, piece.length)
            for piece in plan.prefill
            for _, sequence in self._rows_with_slot([piece.sequence])
            if sequence.slot.computed_positions == piece.start
        ]
        completed = self._context.timed(stats, StepPhase.PREFILL, len(slices), lambda: runner.prefill(slices))
        self._fail_rows()
        prefilled = [self._rows[each.id] for each in completed]
        for stream, sequence in prefilled:
            sequence.apply(SequenceEvent.PREFILLED)
            stream.timing.mark(Mark.PREFILLED, self._context.clock())
        first = self._rows_with_slot(plan.first_frame)
        first += [(stream, each) for stream, each in prefilled if stream.head() is each and stream.may_generate()]
        stepping = self._rows_with_slot(plan.step)
        sequences = [sequence for _, sequence in stepping]
        self._context.timed(stats, StepPhase.TALKER, len(sequences), lambda: runner.step(sequences))
        self._fail_rows()
        self._generate_frames([row for row in first + stepping if row[1].has_slot])

    def _fail_rows(self) -> None:
        """Fail the streams of the sequences whose model call failed."""
        for sequence, error in self._context.runner.take_failures():
            stream, _ = self._rows[sequence.id]
            if not stream.closed:
                self._registry.fail(stream, error)

    def _rows_with_slot(self, planned: Iterable[SequenceId]) -> list[_Row]:
        """The planned rows that still have a slot; a stream may have failed since the plan was made."""
        return [row for row in map(self._rows.__getitem__, planned) if row[1].has_slot]

    def _allocate_slot(self, stream: Stream, sequence: Sequence) -> None:
        """Lease the KV slot of an admitted sequence, and the codec slot with the first sequence of a stream."""
        assert sequence.prompt is not None, "only a sequence with a prompt is admitted"
        runner, voice = self._context.runner, stream.request.voice
        parked = sequence.state is SequenceState.PARKED
        sequence.apply(SequenceEvent.ADMIT)
        lease = runner.pool.acquire(sequence.id)
        if not parked:
            sequence.attach_slot(KVSlot(lease=lease, plan=sequence.prompt))
        try:
            if parked:
                runner.resume_sequence(sequence, lease)
            else:
                runner.add_sequence(sequence, voice)
            if stream.codec_lease is None:
                self._parking.lease(stream)
        except Exception as error:  # boundary: the slot belongs to one stream, so only that stream fails
            self._registry.fail(stream, error)
            return
        stream.timing.mark(Mark.ADMITTED, self._context.clock())

    def _park(self, stream_id: StreamId) -> None:
        """Park a stream, unless it has ended since the plan was made."""
        stream = self._registry.get(stream_id)
        if stream is None:
            return
        try:
            self._parking.park(stream, self._registry.streams())
        except Exception as error:  # boundary: the copies belong to one stream, so only that stream fails
            self._registry.fail(stream, error)

    def _generate_frames(self, rows: list[_Row]) -> None:
        """Sample codebook 0 of each row, then predict the remaining codes of the rows that did not end or fail."""
        if not rows:
            return
        runner, stats, clock = self._context.runner, self._registry.stats, self._context.clock
        outcomes = runner.sample_first_codes([sequence for _, sequence in rows])
        generating: list[_Row] = []
        for (stream, sequence), outcome in zip(rows, outcomes, strict=True):
            stream.timing.mark(Mark.FIRST_CODE, clock())
            if isinstance(outcome, GenerationError):
                self._registry.fail(stream, outcome)
            elif isinstance(outcome, FinishReason):
                self._registry.end_sequence(sequence, outcome)
            else:
                generating.append((stream, sequence))
        sequences = [sequence for _, sequence in generating]
        frames = self._context.timed(
            stats, StepPhase.PREDICTOR, len(sequences), lambda: runner.predict_frames(sequences)
        )
        for (stream, sequence), frame in zip(generating, frames, strict=True):
            stream.timing.mark(Mark.FIRST_FRAME, clock())
            if isinstance(frame, GenerationError):
                self._registry.fail(stream, frame)
            else:
                self._accept_frame(stream, sequence, frame)

    def _accept_frame(self, stream: Stream, sequence: Sequence, frame: Frame) -> None:
        """Queue a new frame for the codec and check the stop conditions."""
        try:
            self._context.codec.check([frame])
        except LegatoError as error:
            self._registry.fail(stream, error)
            return
        sequence.slot.pending_frame = frame
        sequence.frames += 1
        stream.frames += 1
        sequence.undecoded.append(frame)
        limit = frame_limit(sequence, stream.request, stream.frames, self._context.runner.max_seq_len)
        reason = end_after_frame(sequence, stream.watchdog.observe_frame(frame), limit)
        if reason is not None:
            self._registry.end_sequence(sequence, reason)
        if reason is FinishReason.MAX_FRAMES:
            self._registry.drop_later_sequences(stream, sequence, reason)

    # --- retire -------------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Finish sequences that are decoded, and remove streams that have ended."""
        for stream in self._registry.streams():
            stream.retire_sequences()
            if stream.generation_over and not stream.closed and not stream.ready_frames():
                self._registry.deliver_last(stream, stream.finish_reason())
            if stream.closed:
                self._registry.remove(stream)
        if not len(self._registry):
            self._check_slot_leaks()

    def _check_slot_leaks(self) -> None:
        """Raise `StateError` if slots are still allocated while the engine is idle. A leak would reduce capacity."""
        runner, codec = self._context.runner, self._context.codec
        if runner.pool.used or codec.pool.used or runner.num_sequences:
            raise StateError(
                f"slot leak: the engine is idle but {runner.pool.used} KV slots, {codec.pool.used} codec slots and "
                f"{runner.num_sequences} sequences are still allocated"
            )


def _schedulable_sequences(stream: Stream) -> list[Sequence]:
    """The first `SEQUENCES_PER_STREAM` sequences of a stream that still generate, head first."""
    return list(itertools.islice(stream.generating(), SEQUENCES_PER_STREAM))
