"""Sampling from the top candidates is bit-identical to sampling from a full sort: ties, non-finite rows, both dtypes.

`tests/models/test_sampling.py` checks the sampler itself against an independent reference.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.backends.cpu.frame import sample_first_native, sample_native
from legato.kernels.build import Unavailable
from legato.kernels.library import library
from legato.models.sampling import Sampled, SamplerSettings, SamplingRows, process_first_code_logits, sample
from legato.types import SamplingParams


def plain(temperature: float, top_k: int, top_p: float) -> SamplingParams:
    return SamplingParams(temperature, top_k, top_p, 1.0, temperature, top_k, top_p)


def sample_by_full_sort(logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
    """Reference: the same sampling with a full sort; `sample` must be bit-identical to it."""
    ranked, order = torch.sort(logits, dim=1, descending=True, stable=True)
    finite = torch.isfinite(ranked[:, 0])
    k = torch.where(settings.top_k == 0, logits.shape[1], settings.top_k).clamp(max=logits.shape[1])
    ranked = torch.where(finite[:, None], ranked, 0.0)
    greedy = (settings.temperature == 0) | (settings.top_k == 1)
    temperature = torch.where(greedy, torch.ones_like(settings.temperature), settings.temperature).double()
    scaled = (ranked - ranked[:, :1]).double() / temperature[:, None]
    weights = torch.where(ranked >= ranked.gather(1, (k - 1)[:, None]), scaled.exp(), 0.0)
    before = weights.cumsum(1) - weights
    mass = settings.top_p.double()[:, None] * (before + weights)[:, -1:]
    kept = (before < mass) | (before == 0) | (settings.top_p >= 1)[:, None]
    likely = torch.where(kept, weights, 0.0)
    cumulative = likely.cumsum(1)
    target = uniform.double()[:, None] * cumulative[:, -1:]
    rank = torch.minimum((cumulative <= target).sum(1), (likely > 0).sum(1) - 1)
    rank = torch.where(greedy, 0, rank)
    return Sampled(order.gather(1, rank[:, None])[:, 0], finite)


FEW = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 0.5, 0.5000001, 3.0])
BROKEN = st.one_of(FEW, st.sampled_from([math.nan, math.inf]))
WIDE = 130


@st.composite
def batches(draw_: st.DrawFn) -> tuple[list[list[float]], list[SamplingParams], list[float]]:
    """Rows with many equal logits, some not finite, with settings and uniform numbers."""
    count = draw_(st.integers(1, 4))
    kinds = st.one_of(
        st.lists(FEW, min_size=WIDE, max_size=WIDE),
        st.lists(st.floats(-30, 30, width=32), min_size=WIDE, max_size=WIDE),
        st.lists(BROKEN, min_size=WIDE, max_size=WIDE),
        st.just([-math.inf] * WIDE),
    )
    sampling = st.builds(
        plain,
        st.sampled_from([0.0, 1e-30, 0.9, 9.0]),
        st.sampled_from([0, 1, 2, 7, 50, WIDE - 1, WIDE, WIDE + 1]),
        st.sampled_from([1e-9, 0.5, 0.999, 1.0]),
    )
    rows = draw_(st.lists(kinds, min_size=count, max_size=count))
    hows = draw_(st.lists(sampling, min_size=count, max_size=count))
    uniforms = st.lists(st.floats(0, 1, exclude_max=True), min_size=count, max_size=count)
    return rows, hows, draw_(uniforms)


@settings(max_examples=300, deadline=None)
@given(batch=batches(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_top_candidates_equal_a_full_sort(
    batch: tuple[list[list[float]], list[SamplingParams], list[float]], dtype: torch.dtype
) -> None:
    rows, hows, uniforms = batch
    data = torch.tensor(rows, dtype=dtype), SamplingRows.of(hows).first, torch.tensor(uniforms, dtype=torch.float64)
    sampled, wanted = sample(*data), sample_by_full_sort(*data)
    assert torch.equal(sampled.finite, wanted.finite)
    assert torch.equal(sampled.codes, torch.where(wanted.finite, wanted.codes, 0))


@pytest.mark.skipif(isinstance(library(), Unavailable), reason="the native kernels are not available")
@settings(max_examples=300, deadline=None)
@given(batch=batches())
def test_native_sampler_is_bit_identical(batch: tuple[list[list[float]], list[SamplingParams], list[float]]) -> None:
    rows, hows, uniforms = batch
    data = torch.tensor(rows), SamplingRows.of(hows).first, torch.tensor(uniforms, dtype=torch.float64)
    found = library()
    assert not isinstance(found, Unavailable)
    sampled, wanted = sample_native(found, *data), sample(*data)
    assert torch.equal(sampled.finite, wanted.finite)
    assert torch.equal(sampled.codes, wanted.codes)


@pytest.mark.skipif(isinstance(library(), Unavailable), reason="the native kernels are not available")
@settings(max_examples=200, deadline=None)
@given(batch=batches(), seed=st.integers(0, 999), codes=st.integers(1, WIDE), eos=st.integers(0, WIDE - 1))
def test_native_first_code_is_bit_identical(
    batch: tuple[list[list[float]], list[SamplingParams], list[float]], seed: int, codes: int, eos: int
) -> None:
    rows, hows, uniforms = batch
    source = torch.Generator().manual_seed(seed)
    logits, rule = torch.tensor(rows), SamplingRows.of(hows).first
    uniform = torch.tensor(uniforms, dtype=torch.float64)
    seen = torch.rand(logits.shape, generator=source) < 0.4
    frames = torch.randint(4, (len(rows),), generator=source)
    allow_eos = torch.rand(len(rows), generator=source) < 0.6
    penalty = 1.0 + torch.rand(len(rows), generator=source)
    found = library()
    assert not isinstance(found, Unavailable)
    processed = process_first_code_logits(
        *(logits, seen),
        frames=frames,
        allow_eos=allow_eos,
        repetition_penalty=penalty,
        codebook_size=codes,
        eos=eos,
    )
    wanted = sample(processed, rule, uniform)
    sampled = sample_first_native(
        *(found, logits, seen),
        frames=frames,
        allow_eos=allow_eos,
        repetition_penalty=penalty,
        codebook_size=codes,
        eos=eos,
        settings=rule,
        uniform=uniform,
    )
    assert torch.equal(sampled.finite, wanted.finite)
    assert torch.equal(sampled.codes, wanted.codes)


@pytest.mark.skipif(isinstance(library(), Unavailable), reason="the native kernels are not available")
@pytest.mark.parametrize("top_k", [0, 50])
def test_native_sampler_is_bit_identical_at_codebook_size(top_k: int) -> None:
    source = torch.Generator().manual_seed(top_k)
    logits = 3 * torch.randn(400, 2048, generator=source)
    uniforms = torch.rand(400, dtype=torch.float64, generator=source)
    how = SamplingRows.of([plain(0.9, top_k, 0.95)] * 400).first
    found = library()
    assert not isinstance(found, Unavailable)
    wanted = sample(logits, how, uniforms).codes
    assert torch.equal(sample_native(found, logits, how, uniforms).codes, wanted)
    assert len(set(wanted.tolist())) > 200
    assert not torch.equal(sample_native(found, logits, how, uniforms.roll(1)).codes, wanted)


@pytest.mark.parametrize("ties", [1, 10, 60, 2000])
def test_ties_with_the_last_candidate_may_be_sampled(ties: int) -> None:
    """50 of 2,048 candidates, and those that tie with the 50th: the highest uniform number selects the highest id."""
    logits = torch.full((1, 2048), -1.0)
    index = torch.randperm(2048, generator=torch.Generator().manual_seed(ties))
    logits[0, index[:49]] = torch.linspace(5, 4, 49)
    logits[0, index[49 : 49 + ties - 1]] = 1.0
    logits[0, 2047] = 1.0
    last = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    sampled = sample(logits, SamplingRows.of([plain(1.0, 50, 1.0)]).first, last)
    assert sampled.codes.tolist() == [2047]
