"""Sample codes from logits. Settings, earlier codes and noise are arguments, one row per sequence.

A row's code depends only on its own logits, settings and uniform number, never on the batch. The order of the filters
is that of transformers 4.57.3: repetition penalty, minimum length, suppressed ids, temperature, top-k, top-p, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from legato.types import SamplingParams

MIN_FRAMES = 2
"""End of speech is not sampled in the first two frames (`min_new_tokens` 2 of the official package)."""


class Sampled(NamedTuple):
    """Codes int64 [B] (or [B, Q]) and `finite` bool [B]: False where the row's logits held NaN or infinity.

    The code of such a row is 0 and has no meaning: the row fails (`NonFiniteError`), the others do not.
    """

    codes: Tensor
    finite: Tensor


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Sampling settings of one kind of codebook, tensors [B]. Greedy where temperature is 0 or top_k is 1."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling settings of a batch: `first` and `repetition_penalty` [B] of codebook 0, `residual` of the others."""

    first: SamplerSettings
    residual: SamplerSettings
    repetition_penalty: Tensor

    @staticmethod
    def of(rows: Sequence[SamplingParams], device: torch.device | str = "cpu") -> SamplingRows:
        """One row per element of `rows`. Cached: equal rows give the same tensors."""
        return _sampling_rows(tuple(rows), torch.device(device))


@lru_cache(maxsize=64)
def _sampling_rows(rows: tuple[SamplingParams, ...], device: torch.device) -> SamplingRows:
    def reals(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def counts(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return SamplingRows(
        first=SamplerSettings(
            reals([row.temperature for row in rows]),
            counts([row.top_k for row in rows]),
            reals([row.top_p for row in rows]),
        ),
        residual=SamplerSettings(
            reals([row.predictor_temperature for row in rows]),
            counts([row.predictor_top_k for row in rows]),
            reals([row.predictor_top_p for row in rows]),
        ),
        repetition_penalty=reals([row.repetition_penalty for row in rows]),
    )


def end_allowed(frames: Tensor, allow_eos: Tensor) -> Tensor:
    """Whether end of speech may be sampled, bool [B]. The arguments are those of `process_first_code_logits`."""
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
    """Apply repetition penalty and masks to the logits of codebook 0: [B, V] -> [B, V], float32 or wider.

    `seen` bool [B, V]: codes that the sequence has sampled so far (prompt and reference codes excluded). `frames` int64
    [B]: index of the frame to sample. `allow_eos` bool [B]: False where a sequence ends with its text track. Ids from
    `codebook_size` on are not codes and are suppressed, except `eos`.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    penalty = repetition_penalty[:, None].to(logits.dtype)
    logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    may_end = end_allowed(frames, allow_eos)
    legal = (ids < codebook_size) & (ids != eos) | ((ids == eos) & may_end[:, None])
    return logits.masked_fill(~legal, float("-inf"))


def sample(logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
    """Sample one code per row: `logits` [B, V] (-inf: never), `uniform` [B] in [0, 1).

    Temperature, top-k (ties with the k-th are kept, as in transformers), top-p, softmax; then the inverse of the
    cumulative distribution over the candidates in descending order (equal logits by ascending id), in float64. The
    greedy code is the first candidate. Rows with NaN, +inf or only -inf are marked not finite, and their code is 0.
    """
    V = logits.shape[1]
    k = torch.where(settings.top_k == 0, V, settings.top_k).clamp(max=V)
    ranked, order = _top_candidates(logits, k) if logits.device.type == "cpu" else _sort_all(logits)
    # NaN sorts above all numbers, so the first candidate shows whether the row is finite.
    finite = torch.isfinite(ranked[:, 0])
    ranked = torch.where(finite[:, None], ranked, 0.0)
    kth = ranked.gather(1, (k - 1)[:, None])
    greedy = (settings.temperature == 0) | (settings.top_k == 1)
    temperature = torch.where(greedy, 1.0, settings.temperature).double()
    # Subtract the largest logit before dividing: no temperature, however small, makes the largest one infinite.
    scaled = (ranked - ranked[:, :1]).double() / temperature[:, None]
    weights = torch.where(ranked >= kth, scaled.exp(), 0.0)
    before = weights.cumsum(1) - weights
    mass = settings.top_p.double()[:, None] * (before + weights)[:, -1:]
    kept = (before < mass) | (before == 0) | (settings.top_p >= 1)[:, None]
    likely = torch.where(kept, weights, 0.0)
    cumulative = likely.cumsum(1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    # A uniform number that a float32 cast rounded up to 1 still selects a candidate, the last one.
    rank = torch.minimum((cumulative <= target).sum(1), (likely > 0).sum(1) - 1)
    codes = order.gather(1, torch.where(greedy, 0, rank)[:, None])[:, 0]
    return Sampled(torch.where(finite, codes, 0), finite)


def _sort_all(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in descending order, equal ones by ascending id, and their ids. Does not synchronize with the device."""
    ranked, order = torch.sort(logits, dim=1, descending=True, stable=True)
    return ranked, order


def _top_candidates(logits: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The first columns of `_sort_all`, at least each row's `k` [B] largest logits and their ties.

    Doubles the number of candidates until no row has ties beyond it: top-k is faster than sorting the whole row.
    """
    V, size = logits.shape[1], int(k.max()) + 1
    while size < V:
        largest, ids = logits.topk(size, dim=1)
        last = largest[:, -1:]
        if not ((last >= largest.gather(1, (k - 1)[:, None])) & (last > float("-inf"))).any():
            ids = ids.sort(dim=1).values
            ranked, order = torch.sort(logits.gather(1, ids), dim=1, descending=True, stable=True)
            return ranked, ids.gather(1, order)
        size *= 2
    return _sort_all(logits)
