"""The same request alone and in company, in both modes of the engine: late joiners, a neighbour that is cancelled.

In deterministic mode codes and samples are the same to the bit: a call has one row, or all rows of a part that is
batch-invariant. In default mode sums may be taken in another order. Owns one rig at a time; the broken parts of the
controls live here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from legato.config.engine import EngineConfig
from legato.engine.codec_pool import CodecPool
from legato.engine.kv_pool import KVPool
from legato.engine.leases import CodecLease, KVLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import StreamRequest
from legato.errors import GenerationError
from legato.flow import FinishReason, Frame, SequenceId, StreamId
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.models.talker.state import KVRows, TalkerCache
from legato.verify.codec import codec_tolerance, compare_samples
from legato.verify.compare import Comparison, agreement, compare_codes, failure, named, worst
from legato.verify.lines import CheckLine, Kind
from legato.verify.rig import SOUND, CountingRunner, Outcome, Parts, Rig
from legato.verify.subject import POSITIONS, Subject
from legato.verify.tolerance import CODES, SAME_BITS, Tolerance

GROUP = "rows of a batch"
TEXTS = (
    "Yes, of course.",
    "Two or three plain words.",
    "A somewhat longer sentence, with a pause.",
    "Is this the last one?",
    "One more for company.",
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and its text."""

    request: StreamRequest
    text: str


def check_company(subject: Subject) -> Iterator[CheckLine]:
    """Both modes: all streams against themselves alone, their samples against one decode, then the controls."""
    asks = [
        Ask(subject.request(100 + at, packets=((1, 2, 4), (1,), (4,))[at % 3]), TEXTS[at % len(TEXTS)])
        for at in range(subject.depth.company)
    ]
    for deterministic in (False, True):
        yield from _check_mode(subject, asks, deterministic)


def _check_mode(subject: Subject, asks: Sequence[Ask], deterministic: bool) -> Iterator[CheckLine]:
    one = deterministic and not all(subject.model.batch_invariant)
    mode, rows = "deterministic" if deterministic else "default", "one row a call" if one else "all rows in one call"
    path = f"{mode} mode: {rows}"
    setting = f"{len(asks)} streams and a cancelled one, {subject.depth.speech_frames} frames each at most"
    where = subject.at_engine(path, batch=1 if one else len(asks) + 1)
    alone = [solo(subject, ask, len(asks) + 1, deterministic) for ask in asks]
    got = in_company(subject, asks, deterministic)
    rounding = samples_tolerance(subject, alone[0])
    tolerance = alike(subject, alone[0]) if deterministic else rounding
    # What is not promised (codes of whole batches in half precision) is measured, and its samples are not compared.
    promised = deterministic or subject.sharp
    codes = worst(
        [named(same_codes(mine, its), f"stream {at}") for at, (mine, its) in enumerate(zip(got, alone, strict=True))]
    )
    note = agreement([f for each in got for f in each.codes], [f for each in alone for f in each.codes])
    kind = Kind.CLAIM if promised else Kind.MEASURED
    yield CheckLine(GROUP, "codes in company = alone", setting, where, codes, CODES, kind, note)
    if promised:
        found = compare_outcomes(subject, got, alone, tolerance.limit)
        yield CheckLine(GROUP, "samples in company = alone", setting, where, found, tolerance)
    found = one_decode_each(subject, got, rounding)
    yield CheckLine(GROUP, "streamed samples = one decode of the same codes", setting, where, found, rounding)
    for name, parts in faults(batched=not deterministic).items():
        if not promised and parts.codec_pool is CodecPool:
            continue  # codes differ here without any fault, so a fault in them cannot be told
        broken = in_company(subject, asks, deterministic, parts)
        if promised:
            found = compare_outcomes(subject, broken, alone, tolerance.limit)
        else:
            found = one_decode_each(subject, broken, rounding)
        yield CheckLine(GROUP, name, setting, where, found, tolerance, Kind.CONTROL)


def one_decode_each(subject: Subject, outcomes: Sequence[Outcome], limit: Tolerance) -> Comparison:
    """The streamed samples of all streams, each against one decode of its own codes."""
    return worst(
        [named(against_one_decode(subject, each, limit.limit), f"stream {at}") for at, each in enumerate(outcomes)]
    )


def config_of(subject: Subject, streams: int, deterministic: bool) -> EngineConfig:
    """Prompts are computed in a turn or two, so that those who join late still meet the others."""
    return subject.engine_config(streams=streams, deterministic=deterministic, prefill_positions=POSITIONS // 2)


def solo(subject: Subject, ask: Ask, streams: int, deterministic: bool) -> Outcome:
    """The request alone in a fresh engine of the same settings."""
    rig = Rig(subject, config_of(subject, streams, deterministic))
    client = rig.submit(ask.request, ask.text)
    rig.run()
    return rig.outcome(client)


def in_company(subject: Subject, asks: Sequence[Ask], deterministic: bool, parts: Parts = SOUND) -> list[Outcome]:
    """All requests together: they join in different turns, and a stranger comes and is cancelled."""
    rig = Rig(subject, config_of(subject, len(asks) + 1, deterministic), parts)
    stranger = rig.submit(subject.request(199), TEXTS[2])
    clients = []
    for at, ask in enumerate(asks):
        clients.append(rig.submit(ask.request, ask.text))
        for _ in range(at % 3):
            rig.turn()
    rig.turns_until(lambda: stranger.packets >= 2)
    rig.cancel(stranger)
    rig.run()
    return [rig.outcome(client) for client in clients]


def samples_tolerance(subject: Subject, outcome: Outcome) -> Tolerance:
    """The codec's own tolerance, on the codes of `outcome`."""
    decoder = subject.model.decoder
    codes = torch.tensor([outcome.codes], dtype=torch.int64, device=subject.device)
    return codec_tolerance(decoder, codes, decoder.forward(decoder.fresh(1), codes)[0])


def alike(subject: Subject, outcome: Outcome) -> Tolerance:
    """For two runs in which every call has the same shapes: on a CPU the bits are promised, elsewhere not."""
    return SAME_BITS if subject.device.type == "cpu" else samples_tolerance(subject, outcome)


def same_codes(got: Outcome, alone: Outcome) -> Comparison:
    """The codes of two runs; a failed one differs."""
    return failure("; ".join(got.errors)) if got.errors else compare_codes(got.codes, alone.codes)


def compare_outcomes(subject: Subject, got: Sequence[Outcome], alone: Sequence[Outcome], limit: float) -> Comparison:
    """Codes, then samples, of each stream against itself alone."""
    found = []
    for at, (mine, its) in enumerate(zip(got, alone, strict=True)):
        parts = [same_codes(mine, its)]
        if parts[0].max_abs == 0.0:
            parts.append(compare_samples(mine.samples, its.samples, subject.frame_samples, limit))
        found.append(named(worst(parts), f"stream {at}"))
    return worst(found)


def against_one_decode(subject: Subject, outcome: Outcome, limit: float, before: Sequence[Frame] = ()) -> Comparison:
    """The streamed samples against one decode of all codes; `before` are a cloned voice's own frames."""
    if outcome.errors:
        return failure("; ".join(outcome.errors))
    decoder = subject.model.decoder
    codes = torch.tensor([[*before, *outcome.codes]], dtype=torch.int64, device=subject.device)
    whole = decoder.forward(decoder.fresh(1), codes)[0].float().cpu()
    start = len(before) * subject.frame_samples
    return compare_samples(outcome.samples, whole[:, start:], subject.frame_samples, limit)


# --- faults ----------------------------------------------------------------------------------------------------------


def faults(*, batched: bool) -> dict[str, Parts]:
    """Broken parts by name. The last two need several rows in one call."""
    found = {
        "codec history of another stream": Parts(codec_pool=CrossedCodecPool),
        "one talker slot for all streams": Parts(kv_pool=SharedKVPool),
    }
    if batched:
        found["rows swapped in one call"] = Parts(kv_pool=SwappedKVPool)
        found["noise that depends on the row"] = Parts(runner=RowNoiseRunner)
    return found


class CrossedCodecPool(CodecPool):
    """Gives each stream the history of the next one."""

    def __init__(self, storage: CodecStatePool) -> None:
        super().__init__(storage)
        self._live: list[CodecLease] = []

    def acquire(self, stream: StreamId, start: Sequence[CodecHistory]) -> CodecLease:
        self._live.append(super().acquire(stream, start))
        return self._live[-1]

    def gather(self, leases: Sequence[CodecLease]) -> CodecHistory:
        following = [self._live[(self._live.index(lease) + 1) % len(self._live)] for lease in leases]
        return super().gather(following)

    def release(self, lease: CodecLease) -> None:
        self._live.remove(lease)
        super().release(lease)


class SharedKVPool(KVPool):
    """Sends every stream to the slot of the oldest."""

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
    """Turns the rows of every other call of several rows round."""

    def __init__(self, cache: TalkerCache, *, poison: bool = False) -> None:
        super().__init__(cache, poison=poison)
        self._swap = False

    def rows(self, leases: Sequence[KVLease]) -> KVRows:
        if len(leases) > 1:
            self._swap = not self._swap
        return super().rows(leases[::-1] if self._swap else leases)


class RowNoiseRunner(CountingRunner):
    """Draws with noise that depends on the place in the batch."""

    def draw_first_codes(self, sequences: Sequence[TalkerSequence]) -> list[int | FinishReason | GenerationError]:
        self._shift(sequences, 1)
        drawn = super().draw_first_codes(sequences)
        self._shift(sequences, -1)
        return drawn

    def draw_frames(self, sequences: Sequence[TalkerSequence]) -> list[Frame | GenerationError]:
        self._shift(sequences, 1)
        drawn = super().draw_frames(sequences)
        self._shift(sequences, -1)
        return drawn

    @staticmethod
    def _shift(sequences: Sequence[TalkerSequence], sign: int) -> None:
        for place, sequence in enumerate(sequences):
            sequence.seed += sign * 7919 * place
