"""CUDA graph replay against eager calls or one call over everything.

Three rows run in graphs that were captured for four: the padding row must not change any result. Not applicable on a
CPU or without CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from legato.backends.base import FrameInputs
from legato.backends.cuda_capture import GraphRecorder
from legato.backends.cuda_graphs import CapturedSteps, CapturedWindows, EngineState
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.engine.request import default_sampling
from legato.models.codec.state import CodecStatePool
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache
from legato.types import Frame, StreamId
from legato.verify.codec import codec_tolerance, compare_samples
from legato.verify.compare import CODES, NOTHING_COMPARED, agreement, compare, compare_codes
from legato.verify.predictor import greedy_of, predictor_inputs
from legato.verify.results import CheckLine, Kind
from legato.verify.talker import embedded, fixed_inputs, talker_tolerance
from legato.verify.target import Target

GROUP = "CUDA graphs"
PATH = "CUDA graphs"
ROWS, CAPTURED_ROWS = 3, 4
SLOTS = (2, 0, 3)
NUM_POSITIONS = 12
WINDOW_FRAMES = ((1, 1, 1), (2, 1, 4), (4, 4, 4), (8, 3, 5))
"""Frames of each row, window by window."""


def check_cuda_graphs(target: Target) -> Iterator[CheckLine]:
    """Talker steps, code predictor frames and codec windows; each claim has a control."""
    reason = _not_applicable(target)
    if reason is not None:
        yield CheckLine(
            group=GROUP,
            claim="replayed = eager",
            setting="",
            execution=target.engine_execution(PATH, batch=ROWS),
            comparison=NOTHING_COMPARED,
            tolerance=CODES,
            kind=Kind.NOT_APPLICABLE,
            note=reason,
        )
        return
    model = target.model
    stack, dtype = model.config.talker.stack, model.cache_dtype
    cache = TalkerCache.allocate(stack, CAPTURED_ROWS + 1, NUM_POSITIONS + 1, dtype, target.device)
    kv_pool = KVPool(cache, padding_slots=1, poison=True)
    states = CodecStatePool(target.backend.decoder.initial_history(1))
    recorder = GraphRecorder(target.device)
    state = EngineState(cache, states, spare_kv=kv_pool.padding_slot, spare_codec=0)
    captured = CapturedSteps(recorder, target.backend, state, (CAPTURED_ROWS,))
    yield from _talker(target, captured)
    yield from _frames(target, captured)
    yield from _windows(target, recorder)


def _not_applicable(target: Target) -> str | None:
    """The reason why there is nothing to check, if so."""
    if target.device.type != "cuda":
        return "CUDA graphs exist on CUDA only"
    return None if target.cuda_graphs else "CUDA graphs are disabled (--no-cuda-graphs)"


def _talker(target: Target, captured: CapturedSteps) -> Iterator[CheckLine]:
    """Replayed talker steps against one call over all positions."""
    frames, tokens = fixed_inputs(target, NUM_POSITIONS, ROWS)
    x = embedded(target, frames, tokens)
    oracle = target.backend.talker.forward_uncached(x)
    tolerance = talker_tolerance(target, x, oracle)
    rows = KVRows(torch.tensor(SLOTS, device=target.device))

    def line(claim: str, kind: Kind, shift: int = 0) -> CheckLine:
        hidden = []
        for position in range(NUM_POSITIONS):
            # The control shifts all positions but the first.
            starts = torch.full((ROWS,), position + (shift if position else 0))
            span = position + 1 + shift
            hidden.append(captured.decode_step(frames[:, position], tokens[:, position], rows, starts, span=span))
        got = torch.stack(hidden, dim=1)
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=f"{NUM_POSITIONS} positions",
            execution=target.talker_execution(PATH, batch=ROWS),
            comparison=compare(got, oracle, ("row", "position", "value"), stage="hidden", limit=tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    yield line("replayed talker steps = all positions in one call", Kind.CLAIM)
    yield line("position off by one", Kind.CONTROL, shift=1)


def _frames(target: Target, captured: CapturedSteps) -> Iterator[CheckLine]:
    """Replayed code predictor frames against eager ones, with different sampling parameters per row."""
    given = predictor_inputs(target)
    sampling = SamplingRows.of([given.sampling, greedy_of(given.sampling), given.sampling], target.device).residual
    inputs = FrameInputs(
        given.hidden[:ROWS],
        given.first_codes[:ROWS],
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        given.noise[:ROWS],
    )
    oracle = _as_frames(target.backend.predict_frame(inputs).codes)

    def line(claim: str, inputs: FrameInputs, kind: Kind) -> CheckLine:
        got = _as_frames(captured.predict_frame(inputs).codes)
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting="sampling parameters per row",
            execution=target.talker_execution(PATH, batch=ROWS),
            comparison=compare_codes(got, oracle),
            tolerance=CODES,
            kind=kind,
            note=agreement(got, oracle),
        )

    # In low precision another batch size may change a sampled code.
    yield line("replayed codes = eager", inputs, Kind.CLAIM if target.talker_full_precision else Kind.MEASURED)
    if default_sampling(target.model.config).predictor_temperature > 0:
        other = inputs._replace(noise=inputs.noise.roll(1, 1))
        yield line("noise of another codebook", other, Kind.CONTROL)


def _windows(target: Target, recorder: GraphRecorder) -> Iterator[CheckLine]:
    """Replayed codec windows against one decode of all frames."""
    decoder = target.backend.decoder
    lengths = [sum(counts[row] for counts in WINDOW_FRAMES) for row in range(ROWS)]
    codes = target.random_codes(max(lengths), salt=12, rows=ROWS)
    whole, _ = decoder.forward(decoder.initial_history(ROWS), codes)
    tolerance = codec_tolerance(target.model.decoder, codes, whole)
    pool = CodecPool(CodecStatePool(decoder.initial_history(CAPTURED_ROWS + 1)), padding_slots=1)
    cache = TalkerCache.allocate(target.model.config.talker.stack, 1, 1, target.model.cache_dtype, target.device)
    state = EngineState(cache, pool.storage, spare_kv=0, spare_codec=pool.padding_slot)
    captured = CapturedWindows(recorder, target.backend, state, (CAPTURED_ROWS,))
    oracle = torch.cat([whole[row, : length * decoder.frame_samples] for row, length in enumerate(lengths)])[None]

    def line(claim: str, kind: Kind, order: Sequence[int] = range(ROWS)) -> CheckLine:
        leases = [pool.acquire(StreamId(row)) for row in range(ROWS)]
        parts: list[list[Tensor]] = [[] for _ in range(ROWS)]
        positions = [0] * ROWS
        for number, counts in enumerate(WINDOW_FRAMES):
            window = codes.new_zeros(ROWS, max(counts), codes.shape[2])
            for row, count in enumerate(counts):
                window[row, :count] = codes[row, positions[row] : positions[row] + count]
                positions[row] += count
            # The control reorders the leases after the first window, when the histories differ.
            window_leases = [leases[row] for row in (order if number else range(ROWS))]
            samples = captured.decode(pool.rows(window_leases), window, torch.tensor(list(counts)))
            for row, count in enumerate(counts):
                parts[row].append(samples[row, : count * decoder.frame_samples])
        for lease in leases:
            pool.release(lease)
        got = torch.cat([torch.cat(each) for each in parts])[None]
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=f"{len(WINDOW_FRAMES)} windows of 1 to 8 frames",
            execution=target.codec_execution(PATH, batch=ROWS),
            comparison=compare_samples(got, oracle, decoder.frame_samples, tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    yield line("replayed windows = one call", Kind.CLAIM)
    yield line("history of another row", Kind.CONTROL, order=(1, 2, 0))


def _as_frames(codes: Tensor) -> list[Frame]:
    return [tuple(row) for row in codes.tolist()]
