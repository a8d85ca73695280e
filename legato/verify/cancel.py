"""Cancelled requests: their compute stops, their slots are released, and a reused slot keeps no state.

The work of each stream is counted step by step, and once more with the engine's own thread. The controls of `cancel`
drop the output without cancelling, so that compute continues and the counters must show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato.engine.codec_state import CodecPool
from legato.engine.engine import Engine
from legato.engine.leases import CodecLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.sequence import SequenceState
from legato.engine.stream import StreamEvent
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.types import StreamId, TextLayout
from legato.verify.batching import TEXTS, Utterance, compare_outcomes, same_shapes_tolerance
from legato.verify.compare import COUNTS, Comparison, Tolerance, compare_counts, failure, named, worst
from legato.verify.harness import DEFAULT_PARTS, Client, CountingRunner, EngineParts, Outcome, SteppedEngine
from legato.verify.results import CheckLine, Kind
from legato.verify.target import Target

GROUP = "cancel"
REUSE_GROUP = "slot reuse after cancel"
STEPPED_PATH = "engine, step by step"
THREAD_PATH = "engine thread"
PREFILL_POSITIONS = 4
"""Prompt positions per step, so that a prompt takes several steps."""
LONG_FRAMES = 100
LONG_TEXT = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, and so on, and on, and on."
REUSE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Phase:
    """When the client cancels. `ended`: all text has arrived. `reached`: work that must have started, if any."""

    name: str
    ended: bool
    reached: str | None


PHASES = (
    Phase("while waiting for a slot", ended=True, reached=None),
    Phase("during prefill", ended=True, reached="prompt positions"),
    Phase("during generation", ended=True, reached="frames decoded"),
    Phase("while waiting for text", ended=False, reached="frames sampled"),
)


def check_cancel(target: Target) -> Iterator[CheckLine]:
    """Cancel in every phase, with a second stream running; the controls only drop the output."""
    other = Utterance(target.request(300), TEXTS[1])
    solo = run_solo_in_slices(target, other)
    tolerance = same_shapes_tolerance(target, solo)
    execution = target.engine_execution(STEPPED_PATH, batch=2)

    def line(
        claim: str, phase: Phase, comparison: Comparison, limit: Tolerance = COUNTS, kind: Kind = Kind.CLAIM
    ) -> CheckLine:
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=phase.name,
            execution=execution,
            comparison=comparison,
            tolerance=limit,
            kind=kind,
        )

    for phase in PHASES:
        engine, cancelled, running = start(target, phase, other)
        yield line("no compute after a cancel", phase, work_after_cancel(engine, cancelled, phase))
        free = compare_counts(int(engine.all_slots_free), 1, stage="all slots are free (1: yes)")
        yield line("all slots are released", phase, free)
        unchanged = compare_outcomes(target, [engine.outcome(running)], [solo], tolerance.limit)
        yield line("co-batched stream = solo", phase, unchanged, tolerance)
    for phase in PHASES[1:3]:
        engine, abandoned, _ = start(target, phase, other)
        abandoned.stream.on_event = _discard
        continued = work_after_cancel(engine, abandoned, phase, cancel=False)
        yield line("output dropped without a cancel", phase, continued, kind=Kind.CONTROL)
    yield from check_thread(target)


def run_solo_in_slices(target: Target, utterance: Utterance) -> Outcome:
    """Run the request without others, its prefill split into the same slices."""
    config = target.engine_config(max_num_seqs=2, deterministic=True, prefill_positions=PREFILL_POSITIONS)
    engine = SteppedEngine(target, config)
    client = engine.submit(utterance.request, utterance.text)
    engine.run()
    return engine.outcome(client)


def start(target: Target, phase: Phase, other: Utterance) -> tuple[SteppedEngine, Client, Client]:
    """An engine, the client to cancel, which has reached the phase, and the client of `other`."""
    waits_for_slot = phase.reached is None
    config = target.engine_config(
        max_num_seqs=1 if waits_for_slot else 2, deterministic=True, prefill_positions=PREFILL_POSITIONS
    )
    engine = SteppedEngine(target, config)
    running = engine.submit(other.request, other.text)
    if waits_for_slot:
        engine.step()
    request = target.request(301, packets=(1,), layout=None if phase.ended else TextLayout.STREAMING)
    text = TEXTS[2] if phase.ended else "A somewhat longer one with"
    client = engine.submit(request, text, ended=phase.ended)
    engine.step()
    if not phase.ended:
        engine.run_until(lambda: any(each.state is SequenceState.WAITING_FOR_TEXT for each in client.stream.sequences))
    elif phase.reached is not None:
        work = phase.reached
        engine.run_until(lambda: engine.computed(client)[work] > 0)
    return engine, client, running


def work_after_cancel(engine: SteppedEngine, client: Client, phase: Phase, *, cancel: bool = True) -> Comparison:
    """Cancel the client (or only end its text), run until idle, and compare the work counters before and after."""
    before = engine.computed(client)
    if phase.reached is not None and not before[phase.reached]:
        return failure(f"the stream did not reach this phase: no {phase.reached}")
    if cancel:
        engine.cancel(client)
    else:
        engine.end(client)
    engine.run()
    after = engine.computed(client)
    return worst([compare_counts(after[kind], before[kind], stage=kind) for kind in before])


def _discard(_event: StreamEvent) -> None:
    """The event callback of a client that has disconnected."""


def check_thread(target: Target) -> Iterator[CheckLine]:
    """The threaded engine: cancel through the stream handle; the control only stops reading."""
    for cancel in (True, False):
        yield CheckLine(
            group=GROUP,
            claim="frames after a cancel = frames of the other request" if cancel else "client stops reading only",
            setting="after 2 packets of a long text, while another request runs",
            execution=target.engine_execution(THREAD_PATH, batch=2),
            comparison=frames_after_two_packets(target, cancel=cancel),
            tolerance=COUNTS,
            kind=Kind.CLAIM if cancel else Kind.CONTROL,
        )


def frames_after_two_packets(target: Target, *, cancel: bool) -> Comparison:
    """Frames that the engine samples after two packets of a long stream, against those of a second request."""
    config = target.engine_config(max_num_seqs=2, deterministic=True)
    engine = Engine(target.backend, target.front_end, config, poison=True)
    try:
        long = engine.submit(target.request(310, packets=(1,), max_frames=LONG_FRAMES))
        long.append_text(LONG_TEXT)
        long.end_text()
        for _ in range(2):
            next(long)
        if cancel:
            long.cancel()
            for _ in long:
                pass
        before = engine.runner.frames_sampled
        other = engine.submit(target.request(311))
        other.append_text(TEXTS[0])
        other.end_text()
        expected = sum(packet.frames for packet in other)
        sampled = engine.runner.frames_sampled - before
    finally:
        engine.close()
    return named(compare_counts(sampled, expected, stage="frames sampled"), "total, against the second request")


# --- slot reuse ------------------------------------------------------------------------------------------------------


def check_reuse(target: Target) -> Iterator[CheckLine]:
    """A request in a slot in which streams were cancelled, against the same request in a fresh engine."""
    utterance = Utterance(target.request(400), TEXTS[1])

    def line(claim: str, deterministic: bool, got: Outcome, fresh: Outcome, kind: Kind = Kind.CLAIM) -> CheckLine:
        mode = "deterministic mode" if deterministic else "default mode"
        tolerance = same_shapes_tolerance(target, fresh)
        return CheckLine(
            group=REUSE_GROUP,
            claim=claim,
            setting=f"{REUSE_ROUNDS} streams cancelled in different steps, then the request, in one slot",
            execution=target.engine_execution(f"{mode}, one slot", batch=1),
            comparison=compare_outcomes(target, [got], [fresh], tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    for deterministic in (False, True):
        fresh = run_after_cancels(target, utterance, 0, deterministic)
        reused = run_after_cancels(target, utterance, REUSE_ROUNDS, deterministic)
        yield line("used slot = fresh slot", deterministic, reused, fresh)
    faults = {
        "codec history of the cancelled stream kept": EngineParts(codec_pool=StaleCodecPool),
        "KV positions continued from the cancelled stream": EngineParts(runner=SkippingRunner),
    }
    for name, parts in faults.items():
        broken = run_after_cancels(target, utterance, REUSE_ROUNDS, True, parts)
        yield line(name, True, broken, fresh, Kind.CONTROL)


def run_after_cancels(
    target: Target, utterance: Utterance, rounds: int, deterministic: bool, parts: EngineParts = DEFAULT_PARTS
) -> Outcome:
    """Run the request after `rounds` cancelled streams, each a few steps longer. One slot makes reuse certain."""
    engine = SteppedEngine(target, target.engine_config(max_num_seqs=1, deterministic=deterministic), parts)
    for number in range(rounds):
        cancelled = engine.submit(target.request(410 + number, packets=(1,)), TEXTS[2])
        for _ in range(3 + 2 * number):
            engine.step()
        engine.cancel(cancelled)
    client = engine.submit(utterance.request, utterance.text)
    engine.run()
    return engine.outcome(client)


class StaleCodecPool(CodecPool):
    """Starts every stream from the codec history that was stored last."""

    def __init__(self, storage: CodecStatePool) -> None:
        super().__init__(storage)
        self._last: CodecHistory | None = None

    def acquire(self, stream: StreamId, start: CodecHistory | None = None) -> CodecLease:
        return super().acquire(stream, start if self._last is None else self._last)

    def scatter(self, leases: Sequence[CodecLease], history: CodecHistory) -> None:
        self._last = history.select([0])
        super().scatter(leases, history)


class SkippingRunner(CountingRunner):
    """Skips a position in a KV slot that was used before."""

    def step(self, sequences: Sequence[TalkerSequence]) -> None:
        for sequence in sequences:
            if sequence.slot.lease.epoch and sequence.frames == 1:
                sequence.slot.computed_positions += 1
        super().step(sequences)
