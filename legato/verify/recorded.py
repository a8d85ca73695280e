"""What an engine on CUDA records, against the same computed call by call or in one call over everything.

Steps, frames and windows of three rows, in the recording for four: the idle row must change nothing. On a CPU nothing
is recorded, and the group says so. Owns nothing beyond a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from legato.engine.captured import Recorder
from legato.engine.codec_pool import CodecPool
from legato.engine.decode import Windows
from legato.engine.graphs import RecordedSteps, RecordedWindows
from legato.engine.kv_pool import KVPool
from legato.engine.resolve import default_sampling
from legato.engine.steps import FrameInputs, Steps
from legato.flow import Frame, StreamId
from legato.models.codec.state import CodecStatePool
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache
from legato.verify.codec import codec_tolerance, compare_samples
from legato.verify.compare import Comparison, agreement, compare, compare_codes
from legato.verify.lines import CheckLine, Kind
from legato.verify.predictor import given_rows, greedy_of
from legato.verify.subject import Subject
from legato.verify.talker import embedded, fixed_inputs, talker_tolerance
from legato.verify.tolerance import CODES

GROUP = "recorded work"
PATH = "CUDA graphs"
ROWS, RECORDED = 3, 4
SLOTS = (2, 0, 3)
POSITIONS = 12
COUNTS = ((1, 1, 1), (2, 1, 4), (4, 4, 4), (8, 3, 5))
"""Frames of each row in window after window."""


def check_recorded(subject: Subject) -> Iterator[CheckLine]:
    """The three kinds of recordings, and each once more with a fault put in."""
    reason = _why_nothing(subject)
    if reason:
        nothing = Comparison(0.0, 0.0, 0)
        where = subject.at_engine(PATH, batch=ROWS)
        yield CheckLine(GROUP, "recorded = called", "", where, nothing, CODES, Kind.NOT_APPLICABLE, reason)
        return
    model = subject.model
    stack, dtype = model.config.talker.stack, model.cache_dtype
    cache = TalkerCache.allocate(stack, RECORDED + 1, POSITIONS + 1, dtype, subject.device)
    steps = Steps(model.config, model.talker, model.code_predictor, cache)
    recorder = Recorder(subject.device)
    recorded = RecordedSteps(recorder, steps, KVPool(cache, spare=1, poison=True), (RECORDED,))
    yield from _talker(subject, recorded)
    yield from _frames(subject, steps, recorded)
    yield from _windows(subject, recorder)


def _why_nothing(subject: Subject) -> str:
    if subject.device.type != "cuda":
        return "work is recorded on CUDA alone"
    return "" if subject.graphs else "without graphs nothing is recorded (--no-graphs)"


def _talker(subject: Subject, recorded: RecordedSteps) -> Iterator[CheckLine]:
    frames, tokens = fixed_inputs(subject, POSITIONS, ROWS)
    x = embedded(subject, frames, tokens)
    oracle = subject.model.talker.forward_whole(x)
    tolerance = talker_tolerance(subject, x, oracle)
    rows = KVRows(torch.tensor(SLOTS, device=subject.device))

    def line(claim: str, kind: Kind, shift: int = 0) -> CheckLine:
        hidden = [
            recorded.talker(
                frames[:, at], tokens[:, at], rows, torch.full((ROWS,), at + (shift if at else 0)), span=at + 1 + shift
            )
            for at in range(POSITIONS)
        ]
        found = compare(
            torch.stack(hidden, dim=1), oracle, ("row", "position", "value"), stage="hidden", limit=tolerance.limit
        )
        where = subject.at_talker(PATH, batch=ROWS)
        return CheckLine(GROUP, claim, f"{POSITIONS} positions", where, found, tolerance, kind)

    yield line("talker steps, recorded = all positions in one call", Kind.CLAIM)
    yield line("position off by one", Kind.CONTROL, shift=1)


def _frames(subject: Subject, steps: Steps, recorded: RecordedSteps) -> Iterator[CheckLine]:
    given = given_rows(subject)
    how = SamplingRows.of([given.sampling, greedy_of(given.sampling), given.sampling], subject.device).residual
    inputs = FrameInputs(
        given.hidden[:ROWS], given.first[:ROWS], how.temperature, how.top_k, how.top_p, given.noise[:ROWS]
    )
    oracle = _as_frames(steps.frames(inputs).codes)

    def line(claim: str, given: FrameInputs, kind: Kind) -> CheckLine:
        got = _as_frames(recorded.frames(given).codes)
        where = subject.at_talker(PATH, batch=ROWS)
        found = compare_codes(got, oracle)
        return CheckLine(GROUP, claim, "settings by the row", where, found, CODES, kind, agreement(got, oracle))

    # Where more than float32 is rounded, another number of rows may tip a draw.
    claim = Kind.CLAIM if subject.language_sharp else Kind.MEASURED
    yield line("codes, recorded = called", inputs, claim)
    if default_sampling(subject.model.config).predictor_temperature > 0:
        other = inputs._replace(noise=inputs.noise.roll(1, 1))
        yield line("noise of another codebook", other, Kind.CONTROL)


def _windows(subject: Subject, recorder: Recorder) -> Iterator[CheckLine]:
    decoder = subject.model.decoder
    frames = [sum(count[row] for count in COUNTS) for row in range(ROWS)]
    codes = subject.codes(max(frames), salt=12, rows=ROWS)
    whole, _ = decoder.forward(decoder.fresh(ROWS), codes)
    tolerance = codec_tolerance(decoder, codes, whole)
    pool = CodecPool(CodecStatePool(decoder.fresh(RECORDED + 1)), spare=1)
    recorded = RecordedWindows(recorder, Windows(decoder, pool), (RECORDED,))

    def line(claim: str, kind: Kind, order: Sequence[int] = range(ROWS)) -> CheckLine:
        leases = [pool.acquire(StreamId(row), []) for row in range(ROWS)]
        parts: list[list[Tensor]] = [[] for _ in range(ROWS)]
        at = [0] * ROWS
        for number, counts in enumerate(COUNTS):
            window = codes.new_zeros(ROWS, max(counts), codes.shape[2])
            for row, count in enumerate(counts):
                window[row, :count] = codes[row, at[row] : at[row] + count]
                at[row] += count
            theirs = [leases[row] for row in (order if number else range(ROWS))]
            samples = recorded.decode(theirs, window, counts)
            for row, count in enumerate(counts):
                parts[row].append(samples[row, : count * decoder.frame_samples])
        for lease in leases:
            pool.release(lease)
        got = torch.cat([torch.cat(each) for each in parts])[None]
        wanted = torch.cat([whole[row, : count * decoder.frame_samples] for row, count in enumerate(frames)])[None]
        found = compare_samples(got, wanted, decoder.frame_samples, tolerance.limit)
        where = subject.at_codec(PATH, batch=ROWS)
        return CheckLine(GROUP, claim, f"{len(COUNTS)} windows of 1 to 8 frames", where, found, tolerance, kind)

    yield line("windows, recorded = one call", Kind.CLAIM)
    yield line("history of another row", Kind.CONTROL, order=(1, 2, 0))


def _as_frames(codes: Tensor) -> list[Frame]:
    return [tuple(row) for row in codes.tolist()]
