"""The talker with its cache against the same layers without one: slices, single steps, and rows of a batch.

Inputs are fixed tokens and fixed frames, fed whatever the logits say, so nothing is sampled. Owns a small cache of its
own for a call; knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from legato.config.model import BpeTextConfig
from legato.models.layers.decoder_layer import OwnKeyValues, causal_visibility, run_layers, wide_dtype
from legato.models.layers.rope import inverse_frequencies, rotation
from legato.models.quantize import exact_copy
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import next_input
from legato.models.talker.state import KVRows, MaskedWindow, TalkerCache, poison, reads_row_by_row
from legato.verify.compare import Comparison, compare, worst
from legato.verify.lines import CheckLine, Kind
from legato.verify.partitions import random_windows
from legato.verify.subject import Subject
from legato.verify.tolerance import Tolerance, of_rounding, of_scale

GROUP = "talker with cache"
ROWS = 3
SLOTS = (3, 0, 4)
FIXED_SHAPES = "fixed shapes, masked (as on CUDA)"
Span = tuple[int, int, int]
"""Row, first position, end."""


def check_talker(subject: Subject) -> Iterator[CheckLine]:
    """One row cut in several ways, several rows side by side, and what a wrong cache does."""
    talker, P = subject.model.talker, subject.depth.talker_positions
    x = talker_inputs(subject, P, ROWS)
    oracle = torch.cat([talker.forward_whole(x[row : row + 1]) for row in range(ROWS)])
    tolerance = talker_tolerance(subject, x[:1], oracle)
    path = "each row reads its own past" if reads_row_by_row(_cache(talker, 1, 1)) else FIXED_SHAPES
    prompt = 2 * P // 3
    cuts = {
        f"prompt of {prompt} in one call, then step by step": [prompt] + [1] * (P - prompt),
        f"{P} single steps": [1] * P,
        "random slices": random_windows(P, subject.seed),
    }
    for name, sizes in cuts.items():
        got = with_cache(talker, x, spans_of(0, sizes))
        yield _line(subject, "cached = whole", f"{P} positions, {name}", path, 1, (got, oracle), tolerance, [0])
    mixed = side_by_side(P, subject.seed)
    got = in_company(talker, x, mixed)
    setting = f"{P} positions, {ROWS} rows at different positions, permuted slots of a poisoned cache"
    yield _line(subject, "rows of a batch = each alone", setting, path, ROWS, (got, oracle), tolerance, range(ROWS))
    if path != FIXED_SHAPES:
        got = in_company(talker, x, mixed, fixed_shapes=True)
        yield _line(
            subject, "rows of a batch = each alone", setting, FIXED_SHAPES, ROWS, (got, oracle), tolerance, range(ROWS)
        )
    yield from _controls(subject, x, oracle, tolerance, path)


def talker_inputs(subject: Subject, positions: int, rows: int) -> Tensor:
    """Input vectors [rows, positions, D] of `fixed_inputs`."""
    return embedded(subject, *fixed_inputs(subject, positions, rows))


def fixed_inputs(subject: Subject, positions: int, rows: int) -> tuple[Tensor, Tensor]:
    """Fixed frames of codes [rows, positions, Q], each with a fixed text token [rows, positions, ids per token]."""
    text = subject.model.config.talker.text
    size, width = (text.text_vocab_size, 1) if isinstance(text, BpeTextConfig) else (len(text.phones), text.tables)
    generator = torch.Generator().manual_seed(1000 * subject.seed + 11)
    tokens = torch.randint(size, (rows * positions, width), generator=generator).to(subject.device)
    return subject.codes(positions, salt=5, rows=rows), tokens.view(rows, positions, width)


def embedded(subject: Subject, frames: Tensor, tokens: Tensor) -> Tensor:
    """Frames [B, T, Q] and tokens [B, T, ids] -> the talker's input [B, T, D]."""
    talker, predictor = subject.model.talker, subject.model.code_predictor
    return next_input(talker, predictor, frames.flatten(0, 1), tokens.flatten(0, 1)).view(*frames.shape[:2], -1)


def talker_tolerance(subject: Subject, x: Tensor, oracle: Tensor) -> Tolerance:
    """A share of the largest hidden value, or what the rounding of dtype and products costs the whole computation."""
    if subject.language_sharp:
        return of_scale(oracle.dtype, float(oracle.abs().max()))
    exact = whole_in_float32(subject.model.talker, x)
    return of_rounding(float((oracle[:1].float() - exact).abs().max()), subject.language_format)


def whole_in_float32(talker: Talker, x: Tensor) -> Tensor:
    """`forward_whole` of `x` [B, T, D] with weights copied to float32 one layer at a time."""
    stack, y = talker.config.stack, x.float()
    visible = causal_visibility(torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    positions = torch.arange(x.shape[1], device=x.device)[None]
    by = rotation(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), torch.float32)
    for layer in talker.model.layers:
        y = run_layers([exact_copy(layer)], y, by=by, kv=OwnKeyValues(visible))
    hidden: Tensor = exact_copy(talker.model.norm)(y)
    return hidden


# --- ways through the cache ------------------------------------------------------------------------------------------


def spans_of(row: int, sizes: Sequence[int]) -> list[list[Span]]:
    """One call for each of `sizes`, of a single row."""
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    return [[(row, end - size, end)] for size, end in zip(sizes, ends, strict=True)]


def side_by_side(positions: int, seed: int) -> list[list[Span]]:
    """Calls in which all rows advance by random slices of their own, the shorter ones padded; late rows start later."""
    calls: list[list[Span]] = []
    for row in range(ROWS):
        for at, (span,) in enumerate(spans_of(row, random_windows(positions, seed + 7 * row))):
            while len(calls) <= at + row:
                calls.append([])
            calls[at + row].append(span)
    return calls


def with_cache(
    talker: Talker, x: Tensor, calls: Sequence[Sequence[Span]], *, forget: int = -1, shift: int = 0, after: int = 0
) -> Tensor:
    """Hidden states [B, P, D] of one row computed call by call through a cache.

    `forget`: at this call the past is dropped. `shift`: positions are off by so many from call `after` on.
    """
    return in_company(talker, x, calls, forget=forget, shift=shift, after=after, slots=(0,) * ROWS)


def in_company(
    talker: Talker,
    x: Tensor,
    calls: Sequence[Sequence[Span]],
    *,
    fixed_shapes: bool = False,
    slots: Sequence[int] = SLOTS,
    forget: int = -1,
    shift: int = 0,
    after: int = 0,
) -> Tensor:
    """Hidden states [B, P, D] of the rows of `x`, each in its slot of a cache that is poisoned everywhere else."""
    P = x.shape[1]
    cache = _cache(talker, max(SLOTS) + 2, P + 2)
    poison(cache, KVRows.of(range(cache.slots), x.device))
    out = torch.full_like(x, float("nan"))
    for number, spans in enumerate(calls):
        longest = max(end - start for _, start, end in spans)
        batch = torch.stack([torch.nn.functional.pad(x[row, s:e], (0, 0, 0, longest - (e - s))) for row, s, e in spans])
        moved = shift if number >= after else 0
        starts = torch.tensor([0 if forget == number else s + moved for _, s, _ in spans], device=x.device)
        lengths = torch.tensor([e - s for _, s, e in spans], device=x.device)
        rows = KVRows.of([slots[row] for row, _, _ in spans], x.device)
        advance = _fixed_shapes if fixed_shapes else _as_the_engine_does
        if shift and number == after:
            cache.keys[:, :, :, spans[0][1]] = 0.0  # the position that is jumped over holds zeros, not poison
            cache.values[:, :, :, spans[0][1]] = 0.0
        hidden = advance(talker, cache, rows, batch, starts, lengths)
        for place, (row, s, e) in enumerate(spans):
            out[row, s:e] = hidden[place, : e - s]
    return out


def _as_the_engine_does(
    talker: Talker, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor
) -> Tensor:
    return talker.forward_all(cache, rows, x, starts, lengths)


def _fixed_shapes(
    talker: Talker, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor
) -> Tensor:
    """The same through the window that other devices use."""
    stack, T = talker.config.stack, x.shape[1]
    by = rotation(
        starts[:, None] + torch.arange(T, device=x.device),
        inverse_frequencies(stack.head_dim, stack.rope_theta, x.device),
        wide_dtype(x),
    )
    window = MaskedWindow.of(cache, rows, starts, lengths, steps=T, span=cache.positions)
    hidden: Tensor = talker.model.norm(run_layers(talker.model.layers, x, by=by, kv=window))
    return hidden


def _cache(talker: Talker, slots: int, positions: int) -> TalkerCache:
    weight = talker.codec_head.weight
    return TalkerCache.allocate(talker.config.stack, slots, positions, weight.dtype, weight.device)


# --- controls and lines ----------------------------------------------------------------------------------------------


def _controls(subject: Subject, x: Tensor, oracle: Tensor, tolerance: Tolerance, path: str) -> Iterator[CheckLine]:
    talker, P = subject.model.talker, x.shape[1]
    seam = [P - P // 4, P // 4]
    broken = {
        "past dropped at a seam": with_cache(talker, x, spans_of(0, seam), forget=1),
        "another row's cache": in_company(talker, x, side_by_side(P, subject.seed), slots=(0, 0, 0)),
    }
    if subject.language_sharp:  # in half precision this fault is of the size of the rounding
        broken["position off by one"] = with_cache(talker, x, spans_of(0, seam), shift=1, after=1)
    for name, got in broken.items():
        rows = range(ROWS) if "another" in name else [0]
        batch = len(rows)
        yield _line(subject, name, f"{P} positions", path, batch, (got, oracle), tolerance, rows, kind=Kind.CONTROL)


def _line(
    subject: Subject,
    claim: str,
    setting: str,
    path: str,
    batch: int,
    pair: tuple[Tensor, Tensor],
    tolerance: Tolerance,
    rows: Sequence[int],
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    got, oracle = pair
    found: list[Comparison] = [
        compare(
            got[row], oracle[row], ("position", "channel"), stage=f"hidden state of row {row}", limit=tolerance.limit
        )
        for row in rows
    ]
    return CheckLine(GROUP, claim, setting, subject.at_talker(path, batch=batch), worst(found), tolerance, kind)
