"""Independence of co-batched streams: each request batched with others against the same request in its own engine.

Streams join late and one is cancelled. In deterministic mode codes and samples are bit-identical: a model call has one
row, or the component is batch-invariant. In default mode the order of summation may differ. The faulty components of
the negative controls are at the end of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from legato.config.engine import EngineConfig
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.engine.leases import CodecLease, KVLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import StreamRequest
from legato.errors import GenerationError
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.models.talker.state import KVRows, TalkerCache
from legato.types import FinishReason, Frame, SequenceId, StreamId
from legato.verify.codec import codec_tolerance, compare_samples
from legato.verify.compare import (
    CODES,
    SAME_BITS,
    Comparison,
    Tolerance,
    agreement,
    compare_codes,
    failure,
    named,
    worst,
)
from legato.verify.harness import DEFAULT_PARTS, CountingRunner, EngineParts, Outcome, SteppedEngine
from legato.verify.results import CheckLine, Kind
from legato.verify.target import MAX_SEQ_LEN, Target

GROUP = "rows of a batch"
TEXTS = (
    "Yes, of course.",
    "Two or three plain words.",
    "A somewhat longer sentence, with a pause.",
    "Is this the last one?",
    "One more for company.",
)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A request and its text."""

    request: StreamRequest
    text: str


def check_batching(target: Target) -> Iterator[CheckLine]:
    """Both modes: batched streams against solo runs, their samples against one decode, then the controls."""
    packets = ((1, 2, 4), (1,), (4,))
    utterances = [
        Utterance(target.request(100 + number, packets=packets[number % 3]), TEXTS[number % len(TEXTS)])
        for number in range(target.depth.co_batched_streams)
    ]
    for deterministic in (False, True):
        yield from _check_mode(target, utterances, deterministic)


def _check_mode(target: Target, utterances: Sequence[Utterance], deterministic: bool) -> Iterator[CheckLine]:
    one_row = deterministic and not all(asdict(target.backend.batch_invariance).values())
    mode = "deterministic" if deterministic else "default"
    path = f"{mode} mode: {'one row per call' if one_row else 'all rows in one call'}"
    setting = f"{len(utterances)} streams and a cancelled one, up to {target.depth.speech_frames} frames each"
    execution = target.engine_execution(path, batch=1 if one_row else len(utterances) + 1)
    solo = [run_solo(target, each, len(utterances) + 1, deterministic) for each in utterances]
    batched = run_batched(target, utterances, deterministic)
    one_decode_tolerance = samples_tolerance(target, solo[0])
    tolerance = same_shapes_tolerance(target, solo[0]) if deterministic else one_decode_tolerance
    # Codes of whole batches in half precision are not guaranteed: they are measured, and samples are not compared.
    guaranteed = deterministic or target.full_precision
    pairs = enumerate(zip(batched, solo, strict=True))
    yield CheckLine(
        group=GROUP,
        claim="codes of batched streams = solo",
        setting=setting,
        execution=execution,
        comparison=worst([named(compare_outcome_codes(a, b), f"stream {number}") for number, (a, b) in pairs]),
        tolerance=CODES,
        kind=Kind.CLAIM if guaranteed else Kind.MEASURED,
        note=agreement([f for each in batched for f in each.codes], [f for each in solo for f in each.codes]),
    )
    if guaranteed:
        yield CheckLine(
            group=GROUP,
            claim="samples of batched streams = solo",
            setting=setting,
            execution=execution,
            comparison=compare_outcomes(target, batched, solo, tolerance.limit),
            tolerance=tolerance,
        )
    yield CheckLine(
        group=GROUP,
        claim="streamed samples = one decode of the same codes",
        setting=setting,
        execution=execution,
        comparison=compare_all_with_one_decode(target, batched, one_decode_tolerance.limit),
        tolerance=one_decode_tolerance,
    )
    for name, parts in faults(batched=not deterministic).items():
        if not guaranteed and parts.codec_pool is CodecPool:
            continue  # codes may differ without a fault here, so a fault that changes codes cannot be detected
        broken = run_batched(target, utterances, deterministic, parts)
        if guaranteed:
            comparison = compare_outcomes(target, broken, solo, tolerance.limit)
        else:
            comparison = compare_all_with_one_decode(target, broken, one_decode_tolerance.limit)
        yield CheckLine(
            group=GROUP,
            claim=name,
            setting=setting,
            execution=execution,
            comparison=comparison,
            tolerance=tolerance,
            kind=Kind.CONTROL,
        )


def batch_config(target: Target, max_num_seqs: int, deterministic: bool) -> EngineConfig:
    """Prefill takes a step or two, so that streams which join late still overlap with the others."""
    return target.engine_config(
        max_num_seqs=max_num_seqs, deterministic=deterministic, prefill_positions=MAX_SEQ_LEN // 2
    )


def run_solo(target: Target, utterance: Utterance, max_num_seqs: int, deterministic: bool) -> Outcome:
    """Run the request without others in a fresh engine of the same settings."""
    engine = SteppedEngine(target, batch_config(target, max_num_seqs, deterministic))
    client = engine.submit(utterance.request, utterance.text)
    engine.run()
    return engine.outcome(client)


def run_batched(
    target: Target, utterances: Sequence[Utterance], deterministic: bool, parts: EngineParts = DEFAULT_PARTS
) -> list[Outcome]:
    """Run all requests in one engine. They join in different steps; an additional stream is cancelled."""
    engine = SteppedEngine(target, batch_config(target, len(utterances) + 1, deterministic), parts)
    cancelled = engine.submit(target.request(199), TEXTS[2])
    clients = []
    for number, utterance in enumerate(utterances):
        clients.append(engine.submit(utterance.request, utterance.text))
        for _ in range(number % 3):
            engine.step()
    engine.run_until(lambda: cancelled.packets >= 2)
    engine.cancel(cancelled)
    engine.run()
    return [engine.outcome(client) for client in clients]


def samples_tolerance(target: Target, outcome: Outcome) -> Tolerance:
    """The codec's tolerance for the codes of `outcome`."""
    decoder = target.backend.decoder
    codes = torch.tensor([outcome.codes], dtype=torch.int64, device=target.device)
    return codec_tolerance(target.model.decoder, codes, decoder.forward(decoder.initial_history(1), codes)[0])


def same_shapes_tolerance(target: Target, outcome: Outcome) -> Tolerance:
    """For two runs whose calls have the same shapes: bit-identical on a CPU; other devices do not guarantee that."""
    return SAME_BITS if target.device.type == "cpu" else samples_tolerance(target, outcome)


def compare_outcome_codes(got: Outcome, oracle: Outcome) -> Comparison:
    """The codes of two runs. A failed stream is a failure, even if both failed alike."""
    return failure("; ".join(got.errors)) if got.errors else compare_codes(got.codes, oracle.codes)


def compare_outcomes(target: Target, got: Sequence[Outcome], oracle: Sequence[Outcome], limit: float) -> Comparison:
    """Codes of each stream, then samples if the codes are equal."""
    parts = []
    for number, (a, b) in enumerate(zip(got, oracle, strict=True)):
        comparison = compare_outcome_codes(a, b)
        if comparison.max_abs == 0.0:
            samples = compare_samples(a.samples, b.samples, target.frame_samples, limit)
            comparison = worst([comparison, samples])
        parts.append(named(comparison, f"stream {number}"))
    return worst(parts)


def compare_with_one_decode(
    target: Target, outcome: Outcome, limit: float, reference_codes: Sequence[Frame] = ()
) -> Comparison:
    """The streamed samples against one decode of all codes. `reference_codes` precede them for a cloned voice."""
    if outcome.errors:
        return failure("; ".join(outcome.errors))
    decoder = target.backend.decoder
    codes = torch.tensor([[*reference_codes, *outcome.codes]], dtype=torch.int64, device=target.device)
    whole = decoder.forward(decoder.initial_history(1), codes)[0].float().cpu()
    start = len(reference_codes) * target.frame_samples
    return compare_samples(outcome.samples, whole[:, start:], target.frame_samples, limit)


def compare_all_with_one_decode(target: Target, outcomes: Sequence[Outcome], limit: float) -> Comparison:
    """`compare_with_one_decode` for each stream."""
    return worst(
        [
            named(compare_with_one_decode(target, outcome, limit), f"stream {number}")
            for number, outcome in enumerate(outcomes)
        ]
    )


# --- faults ----------------------------------------------------------------------------------------------------------


def faults(*, batched: bool) -> dict[str, EngineParts]:
    """Faulty components by name. The last two need several rows per call."""
    found = {
        "codec history of another stream": EngineParts(codec_pool=CrossedCodecPool),
        "one KV slot for all streams": EngineParts(kv_pool=SharedKVPool),
    }
    if batched:
        found["KV rows swapped within a call"] = EngineParts(kv_pool=SwappedKVPool)
        found["noise depends on the batch row"] = EngineParts(runner=RowNoiseRunner)
    return found


class CrossedCodecPool(CodecPool):
    """Returns the history of the next stream for each stream."""

    def __init__(self, storage: CodecStatePool) -> None:
        super().__init__(storage)
        self._live: list[CodecLease] = []

    def acquire(self, stream: StreamId, start: CodecHistory | None = None) -> CodecLease:
        self._live.append(super().acquire(stream, start))
        return self._live[-1]

    def gather(self, leases: Sequence[CodecLease]) -> CodecHistory:
        following = [self._live[(self._live.index(lease) + 1) % len(self._live)] for lease in leases]
        return super().gather(following)

    def release(self, lease: CodecLease) -> None:
        self._live.remove(lease)
        super().release(lease)


class SharedKVPool(KVPool):
    """Uses the KV slot of the oldest stream for every stream."""

    def __init__(self, cache: TalkerCache, *, poison: bool = False) -> None:
        super().__init__(cache, poison=poison)
        self._live: list[KVLease] = []

    def acquire(self, sequence: SequenceId) -> KVLease:
        self._live.append(super().acquire(sequence))
        return self._live[-1]

    def rows(self, leases: Sequence[KVLease]) -> KVRows:
        return super().rows([self._live[0]] * len(leases))

    def release(self, lease: KVLease) -> None:
        self._live.remove(lease)
        super().release(lease)


class SwappedKVPool(KVPool):
    """Reverses the rows in every second call that has several."""

    def __init__(self, cache: TalkerCache, *, poison: bool = False) -> None:
        super().__init__(cache, poison=poison)
        self._swap = False

    def rows(self, leases: Sequence[KVLease]) -> KVRows:
        if len(leases) > 1:
            self._swap = not self._swap
        return super().rows(leases[::-1] if self._swap else leases)


class RowNoiseRunner(CountingRunner):
    """Samples with a seed that depends on the row in the batch."""

    def sample_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        self._shift(sequences, 1)
        sampled = super().sample_first_codes(sequences)
        self._shift(sequences, -1)
        return sampled

    def predict_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        self._shift(sequences, 1)
        sampled = super().predict_frames(sequences)
        self._shift(sequences, -1)
        return sampled

    @staticmethod
    def _shift(sequences: Sequence[TalkerSequence], sign: int) -> None:
        for row, sequence in enumerate(sequences):
            sequence.seed += sign * 7919 * row
