"""The talker with a KV cache against the same layers without one: prefill slices, single steps, batched rows.

Inputs are fixed tokens and frames, independent of the logits, so nothing is sampled. The KV cache lives for one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from legato.config.model import BpeTextConfig
from legato.models.layers.attention import wide_dtype
from legato.models.layers.decoder_layer import UncachedKV, causal_visibility, run_layers
from legato.models.layers.rope import inverse_frequencies, rope_tables
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, MaskedKVView, TalkerCache, poison, reads_row_by_row
from legato.verify.compare import Tolerance, compare, of_low_precision, of_scale, worst
from legato.verify.results import CheckLine, Kind
from legato.verify.target import Target, random_windows
from legato.weights.quantization import dequantized_copy

GROUP = "talker with cache"
ROWS = 3
SLOTS = (3, 0, 4)
ROW_BY_ROW = "each row reads its own past"
FIXED_SHAPES = "fixed shapes with a mask (as on CUDA)"
Span = tuple[int, int, int]
"""Row, first position, end position."""


def check_talker(target: Target) -> Iterator[CheckLine]:
    """One row split in several ways, several rows batched, then the controls."""
    talker, P = target.backend.talker, target.depth.talker_positions
    x = talker_inputs(target, P, ROWS)
    oracle = torch.cat([talker.forward_uncached(x[row : row + 1]) for row in range(ROWS)])
    tolerance = talker_tolerance(target, x[:1], oracle)
    path = ROW_BY_ROW if reads_row_by_row(_cache(talker, 1, 1)) else FIXED_SHAPES
    prompt = 2 * P // 3
    splits = {
        f"prompt of {prompt} in one call, then step by step": [prompt] + [1] * (P - prompt),
        f"{P} single steps": [1] * P,
        "random slices": random_windows(P, target.seed),
    }
    for name, sizes in splits.items():
        got = run_one_row(talker, x, spans_of(0, sizes))
        yield _line(target, "cached = uncached", f"{P} positions, {name}", path, (got, oracle), tolerance, [0])
    calls = batched_calls(P, target.seed)
    setting = f"{P} positions, {ROWS} rows at different positions, permuted slots of a poisoned cache"
    got = run_batched(talker, x, calls)
    yield _line(target, "rows of a batch = single rows", setting, path, (got, oracle), tolerance, range(ROWS))
    if path != FIXED_SHAPES:
        got = run_batched(talker, x, calls, fixed_shapes=True)
        claim = "rows of a batch = single rows"
        yield _line(target, claim, setting, FIXED_SHAPES, (got, oracle), tolerance, range(ROWS))
    yield from _controls(target, x, oracle, tolerance, path)


def talker_inputs(target: Target, positions: int, rows: int) -> Tensor:
    """Input vectors [rows, positions, D] of `fixed_inputs`."""
    return embedded(target, *fixed_inputs(target, positions, rows))


def fixed_inputs(target: Target, positions: int, rows: int) -> tuple[Tensor, Tensor]:
    """Fixed codes [rows, positions, Q] and text tokens [rows, positions, ids per token]."""
    text = target.model.config.talker.text
    size, width = (text.text_vocab_size, 1) if isinstance(text, BpeTextConfig) else (len(text.phones), text.tables)
    generator = torch.Generator().manual_seed(1000 * target.seed + 11)
    tokens = torch.randint(size, (rows * positions, width), generator=generator).to(target.device)
    return target.random_codes(positions, salt=5, rows=rows), tokens.view(rows, positions, width)


def embedded(target: Target, frames: Tensor, tokens: Tensor) -> Tensor:
    """Frames [B, T, Q] and tokens [B, T, ids] -> the talker's input [B, T, D]."""
    talker, predictor = target.backend.talker, target.backend.code_predictor
    return next_input(talker, predictor, frames.flatten(0, 1), tokens.flatten(0, 1)).view(*frames.shape[:2], -1)


def talker_tolerance(target: Target, x: Tensor, oracle: Tensor) -> Tolerance:
    """A fraction of the largest hidden value. In low precision: relative to the error against float32."""
    if target.talker_full_precision:
        return of_scale(oracle.dtype, float(oracle.abs().max()))
    reference = whole_in_float32(target.model.talker, x)
    return of_low_precision(float((oracle[:1].float() - reference).abs().max()), target.talker_format)


def whole_in_float32(talker: Talker, x: Tensor) -> Tensor:
    """`forward_uncached` of `x` [B, T, D] with weights copied to float32 one layer at a time."""
    stack, y = talker.config.stack, x.float()
    visible = causal_visibility(torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    positions = torch.arange(x.shape[1], device=x.device)[None]
    rope = rope_tables(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), torch.float32)
    for layer in talker.model.layers:
        y = run_layers([dequantized_copy(layer)], y, rope=rope, kv=UncachedKV(visible))
    hidden: Tensor = dequantized_copy(talker.model.norm)(y)
    return hidden


# --- runs with a KV cache --------------------------------------------------------------------------------------------


def spans_of(row: int, sizes: Sequence[int]) -> list[list[Span]]:
    """Calls with one span each, of `sizes` positions of `row`."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [[(row, end - size, end)] for size, end in zip(sizes, ends, strict=True)]


def batched_calls(positions: int, seed: int) -> list[list[Span]]:
    """Calls in which rows advance by random slices of different lengths (padded). Row n joins in call n."""
    calls: list[list[Span]] = []
    for row in range(ROWS):
        for index, (span,) in enumerate(spans_of(row, random_windows(positions, seed + 7 * row))):
            while len(calls) <= index + row:
                calls.append([])
            calls[index + row].append(span)
    return calls


def run_one_row(
    talker: Talker,
    x: Tensor,
    calls: Sequence[Sequence[Span]],
    *,
    forget: int | None = None,
    shift: int = 0,
    after: int = 0,
) -> Tensor:
    """Hidden states [B, P, D] of one row computed call by call with a cache.

    Faults for the controls: call number `forget` starts at position 0; from call `after`, positions are off by `shift`.
    """
    return run_batched(talker, x, calls, forget=forget, shift=shift, after=after, slots=(0,) * ROWS)


def run_batched(
    talker: Talker,
    x: Tensor,
    calls: Sequence[Sequence[Span]],
    *,
    fixed_shapes: bool = False,
    slots: Sequence[int] = SLOTS,
    forget: int | None = None,
    shift: int = 0,
    after: int = 0,
) -> Tensor:
    """Hidden states [B, P, D] of the rows of `x`, each in its own slot of a poisoned cache."""
    P = x.shape[1]
    cache = _cache(talker, max(SLOTS) + 2, P + 2)
    poison(cache, KVRows.of(range(cache.slots), x.device))
    out = torch.full_like(x, float("nan"))
    for number, spans in enumerate(calls):
        longest = max(end - start for _, start, end in spans)
        batch = torch.stack([torch.nn.functional.pad(x[row, s:e], (0, 0, 0, longest - (e - s))) for row, s, e in spans])
        offset = shift if number >= after else 0
        starts = torch.tensor([0 if forget == number else s + offset for _, s, _ in spans], device=x.device)
        lengths = torch.tensor([e - s for _, s, e in spans], device=x.device)
        rows = KVRows.of([slots[row] for row, _, _ in spans], x.device)
        forward = _forward_fixed_shapes if fixed_shapes else _forward_all
        if shift and number == after:
            cache.keys[:, :, :, spans[0][1]] = (
                0.0  # the skipped position must hold zeros, or the poison would reveal the fault
            )
            cache.values[:, :, :, spans[0][1]] = 0.0
        hidden = forward(talker, cache, rows, batch, starts, lengths)
        for index, (row, s, e) in enumerate(spans):
            out[row, s:e] = hidden[index, : e - s]
    return out


def _forward_all(
    talker: Talker, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor
) -> Tensor:
    return talker.forward_all(cache, rows, x, starts, lengths)


def _forward_fixed_shapes(
    talker: Talker, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor
) -> Tensor:
    """The same with the masked window that other devices use."""
    stack, T = talker.config.stack, x.shape[1]
    rope = rope_tables(
        starts[:, None] + torch.arange(T, device=x.device),
        inverse_frequencies(stack.head_dim, stack.rope_theta, x.device),
        wide_dtype(x),
    )
    window = MaskedKVView.of(cache, rows, starts, lengths, steps=T, span=cache.positions)
    hidden: Tensor = talker.model.norm(run_layers(talker.model.layers, x, rope=rope, kv=window))
    return hidden


def _cache(talker: Talker, slots: int, positions: int) -> TalkerCache:
    weight = talker.codec_head.weight
    return TalkerCache.allocate(talker.config.stack, slots, positions, weight.dtype, weight.device)


# --- controls and lines ----------------------------------------------------------------------------------------------


def _controls(target: Target, x: Tensor, oracle: Tensor, tolerance: Tolerance, path: str) -> Iterator[CheckLine]:
    talker, P = target.backend.talker, x.shape[1]
    two_calls = spans_of(0, [P - P // 4, P // 4])

    def line(name: str, got: Tensor, rows: Sequence[int]) -> CheckLine:
        return _line(target, name, f"{P} positions", path, (got, oracle), tolerance, rows, kind=Kind.CONTROL)

    yield line("past dropped between two calls", run_one_row(talker, x, two_calls, forget=1), [0])
    other_row = run_batched(talker, x, batched_calls(P, target.seed), slots=(0, 0, 0))
    yield line("KV slot of another row", other_row, range(ROWS))
    if target.talker_full_precision:  # in low precision this fault is as small as the rounding error
        yield line("position off by one", run_one_row(talker, x, two_calls, shift=1, after=1), [0])


def _line(
    target: Target,
    claim: str,
    setting: str,
    path: str,
    pair: tuple[Tensor, Tensor],
    tolerance: Tolerance,
    rows: Sequence[int],
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    """Compare `rows` of a pair of hidden states, row by row."""
    got, oracle = pair
    parts = [
        compare(
            got[row], oracle[row], ("position", "channel"), stage=f"hidden state of row {row}", limit=tolerance.limit
        )
        for row in rows
    ]
    return CheckLine(
        group=GROUP,
        claim=claim,
        setting=setting,
        execution=target.talker_execution(path, batch=len(rows)),
        comparison=worst(parts),
        tolerance=tolerance,
        kind=kind,
    )
