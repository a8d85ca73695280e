"""Logits -> code. Owns nothing: settings, history and noise are arguments, one row for each sequence.

A row's code depends on its own logits, settings and uniform number alone, never on the batch. The order of the filters
is that of transformers 4.57.3: repetition penalty, minimal length, suppressed ids, temperature, top-k, top-p, draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from legato.flow import Sampling

MIN_FRAMES = 2
"""The end of speech cannot be drawn for the first two frames (`min_new_tokens` 2 of the official package)."""


class Drawn(NamedTuple):
    """Codes int64 [B] (or [B, Q]) and `finite` bool [B]: False where the row's logits held NaN or infinity.

    The code of such a row is 0 and means nothing: it has failed (`NonFiniteError`), its neighbours not.
    """

    codes: Tensor
    finite: Tensor


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How one kind of codebook is drawn: each a tensor [B]. Greedy where temperature is 0 or top_k is 1."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of a batch: codebook 0, residual codebooks, and the penalty of codebook 0 [B]."""

    first: DrawSettings
    residual: DrawSettings
    repetition_penalty: Tensor

    @staticmethod
    def of(rows: Sequence[Sampling], device: torch.device | str = "cpu") -> SamplingRows:
        """One row for each of `rows`, which were checked when they were made. The same tensors for the same rows."""
        return _sampling_rows(tuple(rows), torch.device(device))


@lru_cache(maxsize=64)
def _sampling_rows(rows: tuple[Sampling, ...], device: torch.device) -> SamplingRows:
    def reals(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def counts(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return SamplingRows(
        first=DrawSettings(
            reals([row.temperature for row in rows]),
            counts([row.top_k for row in rows]),
            reals([row.top_p for row in rows]),
        ),
        residual=DrawSettings(
            reals([row.predictor_temperature for row in rows]),
            counts([row.predictor_top_k for row in rows]),
            reals([row.predictor_top_p for row in rows]),
        ),
        repetition_penalty=reals([row.repetition_penalty for row in rows]),
    )


def end_allowed(frames: Tensor, allow_eos: Tensor) -> Tensor:
    """Whether the end of speech may be drawn, bool [B]: see `process_first_code_logits`."""
    return allow_eos & (frames >= MIN_FRAMES)


def process_first_code_logits(
    logits: Tensor,
    seen: Tensor,
    *,
    frames: Tensor,
    allow_eos: Tensor,
    repetition_penalty: Tensor,
    codebook_size: int,
    eos: int,
) -> Tensor:
    """What is done to the logits of codebook 0 before they are drawn from: [B, V] -> [B, V], float32 or wider.

    `seen` bool [B, V]: codes that the sequence has drawn so far (present or not; prompt and reference codes not
    included). `frames` int64 [B]: number of the frame to be drawn. `allow_eos` bool [B]: False where a sequence ends by
    its track. Ids from `codebook_size` on are no codes and are suppressed, except `eos`.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    penalty = repetition_penalty[:, None].to(logits.dtype)
    logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    may_end = end_allowed(frames, allow_eos)
    legal = (ids < codebook_size) & (ids != eos) | ((ids == eos) & may_end[:, None])
    return logits.masked_fill(~legal, float("-inf"))


def draw(logits: Tensor, settings: DrawSettings, uniform: Tensor) -> Drawn:
    """Draw one code a row: `logits` [B, V] (-inf: never), `uniform` [B] in [0, 1).

    Temperature, top-k (ties with the k-th are kept, as in transformers), top-p, softmax; then the inverse of the
    cumulative distribution over the candidates in falling order (equal logits by rising id), in float64. The greedy
    code is the first candidate. Rows with NaN, +inf or nothing but -inf are marked not finite, and their code is 0.
    """
    V = logits.shape[1]
    k = torch.where(settings.top_k == 0, V, settings.top_k).clamp(max=V)
    ranked, order = _candidates(logits, k) if logits.device.type == "cpu" else _all_ranked(logits)
    # NaN ranks above all numbers, so the first in rank tells what is wrong with a row.
    finite = torch.isfinite(ranked[:, 0])
    ranked = torch.where(finite[:, None], ranked, 0.0)
    kth = ranked.gather(1, (k - 1)[:, None])
    greedy = (settings.temperature == 0) | (settings.top_k == 1)
    warm = torch.where(greedy, 1.0, settings.temperature).double()
    # The largest is subtracted before the division: no temperature, however small, makes an infinity of it.
    heights = (ranked - ranked[:, :1]).double() / warm[:, None]
    weights = torch.where(ranked >= kth, heights.exp(), 0.0)
    before = weights.cumsum(1) - weights
    mass = settings.top_p.double()[:, None] * (before + weights)[:, -1:]
    kept = (before < mass) | (before == 0) | (settings.top_p >= 1)[:, None]
    likely = torch.where(kept, weights, 0.0)
    cumulative = likely.cumsum(1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    # A uniform number that was rounded up to 1 on its way (float32) still draws a candidate, the last.
    rank = torch.minimum((cumulative <= target).sum(1), (likely > 0).sum(1) - 1)
    codes = order.gather(1, torch.where(greedy, 0, rank)[:, None])[:, 0]
    return Drawn(torch.where(finite, codes, 0), finite)


def _all_ranked(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in falling order, equal ones by rising id, and their ids: where the host must not wait for a number."""
    ranked, order = torch.sort(logits, dim=1, descending=True, stable=True)
    return ranked, order


def _candidates(logits: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The first ranks of `_all_ranked`, enough for every row's candidates: its `k` [B] largest and their equals."""
    V, size = logits.shape[1], int(k.max()) + 1
    while size < V:
        largest, ids = logits.topk(size, dim=1)
        last = largest[:, -1:]
        if not ((last >= largest.gather(1, (k - 1)[:, None])) & (last > float("-inf"))).any():
            ids = ids.sort(dim=1).values
            ranked, order = torch.sort(logits.gather(1, ids), dim=1, descending=True, stable=True)
            return ranked, ids.gather(1, order)
        size *= 2
    return _all_ranked(logits)
