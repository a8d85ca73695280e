"""Sampling against a reference implementation with lists and floats, row by row.

The reference follows the order of the official generation loop. Ties, edges and non-finite rows have their own tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.models.sampling import SamplerSettings, SamplingRows, process_first_code_logits, sample
from legato.types import SamplingParams

BOOK, EOS, V = 12, 14, 16
SETTINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.9, 2.0]),
    top_k=st.integers(0, V + 4),
    top_p=st.sampled_from([1e-9, 0.25, 0.6, 0.95, 1.0]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.05, 1.7]),
    predictor_temperature=st.just(0.9),
    predictor_top_k=st.just(50),
    predictor_top_p=st.just(1.0),
)
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=V, max_size=V)
ROWS = st.lists(
    st.tuples(
        LOGITS, SETTINGS, st.sets(st.integers(0, BOOK - 1)), st.integers(0, 4), st.booleans(), st.floats(0, 0.999)
    ),
    min_size=1,
    max_size=5,
)
Row = tuple[list[float], SamplingParams, set[int], int, bool, float]


def plain(temperature: float, top_k: int, top_p: float) -> SamplingParams:
    return SamplingParams(temperature, top_k, top_p, 1.0, temperature, top_k, top_p)


def oracle_processed(logits: list[float], penalty: float, seen: set[int], frame: int, allow_eos: bool) -> list[float]:
    out = list(logits)
    for code in seen:
        out[code] = out[code] / penalty if out[code] > 0 else out[code] * penalty
    for code in range(len(out)):
        if code == EOS:
            if frame < 2 or not allow_eos:
                out[code] = -math.inf
        elif code >= BOOK:
            out[code] = -math.inf
    return out


def oracle_weights(logits: list[float], sampling: SamplingParams) -> dict[int, float]:
    """Probability of each code that the filters leave, most likely first."""
    order = sorted(range(len(logits)), key=lambda code: (-logits[code], code))
    if sampling.temperature == 0 or sampling.top_k == 1:
        return {order[0]: 1.0}
    kept = [code for code in order if logits[code] > -math.inf]
    if 0 < sampling.top_k < len(logits):
        bound = logits[order[sampling.top_k - 1]]
        kept = [code for code in kept if logits[code] >= bound]
    top = logits[kept[0]]
    weights = {code: math.exp((logits[code] - top) / sampling.temperature) for code in kept}
    if sampling.top_p < 1:
        total, before = sum(weights.values()), 0.0
        nucleus: dict[int, float] = {}
        for code, weight in weights.items():
            if nucleus and before >= sampling.top_p * total:
                break
            nucleus[code] = weight
            before += weight
        weights = nucleus
    total = sum(weights.values())
    return {code: weight / total for code, weight in weights.items()}


def allowed(weights: dict[int, float], uniform: float) -> set[int]:
    """The code of the inverse cumulative distribution; within 1e-6 of a boundary, both neighbours."""
    chosen, before = set(), 0.0
    for code, weight in weights.items():
        if before - 1e-6 <= uniform <= before + weight + 1e-6:
            chosen.add(code)
        before += weight
    return chosen


def first_codes(rows: Sequence[Row]) -> tuple[list[list[float]], list[int], list[bool]]:
    sampling = SamplingRows.of([row[1] for row in rows])
    seen = torch.zeros(len(rows), V, dtype=torch.bool)
    for index, row in enumerate(rows):
        seen[index, list(row[2])] = True
    processed = process_first_code_logits(
        torch.tensor([row[0] for row in rows]),
        seen,
        frames=torch.tensor([row[3] for row in rows]),
        allow_eos=torch.tensor([row[4] for row in rows]),
        repetition_penalty=sampling.repetition_penalty,
        codebook_size=BOOK,
        eos=EOS,
    )
    sampled = sample(processed, sampling.first, torch.tensor([row[5] for row in rows], dtype=torch.float64))
    return processed.tolist(), sampled.codes.tolist(), sampled.finite.tolist()


@settings(max_examples=150, deadline=None)
@given(rows=ROWS)
def test_rows_with_different_settings_equal_the_oracle(rows: list[Row]) -> None:
    processed, codes, finite = first_codes(rows)
    for row, got, code in zip(rows, processed, codes, strict=True):
        logits, sampling, seen, frame, allow_eos, uniform = row
        expected = oracle_processed(logits, sampling.repetition_penalty, seen, frame, allow_eos)
        assert got == pytest.approx(expected, abs=1e-6)
        # From the processed logits of the implementation, so that rounding of the penalty does not matter.
        assert code in allowed(oracle_weights(got, sampling), uniform)
    assert all(finite)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_row_does_not_depend_on_the_batch(rows: list[Row]) -> None:
    processed, codes, _ = first_codes(rows)
    for index, row in enumerate(rows):
        alone, code, _ = first_codes([row])
        assert (alone[0], code[0]) == (processed[index], codes[index])


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        (plain(1.0, 0, 1.0), [0.5, 0.25, 0.125, 0.125]),
        (plain(0.5, 0, 1.0), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (plain(1.0, 2, 1.0), [2 / 3, 1 / 3, 0, 0]),
        (plain(1.0, 3, 1.0), [0.5, 0.25, 0.125, 0.125]),  # ties with the third are kept
        (plain(1.0, 0, 0.6), [2 / 3, 1 / 3, 0, 0]),
        (plain(1.0, 2, 0.6), [1, 0, 0, 0]),  # top-p applies to the result of top-k
    ],
)
def test_samples_follow_the_filtered_distribution(settings_: SamplingParams, expected: list[float]) -> None:
    n = 4000
    logits = torch.tensor([0.25, 0.5, 0.125, 0.125]).log()
    rows = SamplingRows.of([settings_])
    spread = SamplerSettings(*(part.expand(n) for part in (rows.first.temperature, rows.first.top_k, rows.first.top_p)))
    uniforms = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    codes = sample(logits.expand(n, 4), spread, uniforms).codes
    shares = torch.bincount(codes, minlength=4) / n
    assert shares[[1, 0, 2, 3]].tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "sampling",
    [plain(0.0, 0, 1.0), plain(1.0, 1, 1.0), plain(1.0, 0, 1e-300), plain(1e-45, 0, 1.0), plain(1e-38, 0, 1.0)],
)
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0])
def test_degenerate_settings_give_the_argmax(sampling: SamplingParams, uniform: float) -> None:
    """Temperature 0, one candidate or a tiny top-p: the argmax, without NaN or division by zero (R26)."""
    logits = torch.tensor([[-3.0, 88.0, 87.0, float("-inf")]])
    sampled = sample(logits, SamplingRows.of([sampling]).first, torch.tensor([uniform]))
    assert sampled.codes.tolist() == [1]
    assert sampled.finite.tolist() == [True]


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    sampled = sample(torch.tensor([[1.0, 5.0, 5.0]]), SamplingRows.of([plain(0.0, 0, 1.0)]).first, torch.tensor([0.9]))
    assert sampled.codes.tolist() == [1]


def test_masked_code_is_never_sampled() -> None:
    """All but two codes are masked; uniform numbers are at both ends of the range."""
    logits = torch.full((3, V), float("-inf"))
    logits[:, [4, 7]] = torch.tensor([0.0, -30.0])
    rows = SamplingRows.of([plain(10.0, 0, 1.0)] * 3)
    sampled = sample(logits, rows.first, torch.tensor([0.0, 1.0, 0.5]))
    assert sampled.codes.tolist() == [4, 7, 4]


def test_ids_outside_the_codebook_are_suppressed_except_eos() -> None:
    """Their logits are the highest: eos is sampled from frame 2 on if `allow_eos`, and code 0 otherwise (R27)."""
    logits = torch.zeros(3, V)
    logits[:, BOOK:] = 50.0
    sampling = SamplingRows.of([plain(0.0, 0, 1.0)] * 3)
    processed = process_first_code_logits(
        logits,
        torch.zeros(3, V, dtype=torch.bool),
        frames=torch.tensor([1, 2, 2]),
        allow_eos=torch.tensor([True, True, False]),
        repetition_penalty=sampling.repetition_penalty,
        codebook_size=BOOK,
        eos=EOS,
    )
    assert sample(processed, sampling.first, torch.zeros(3)).codes.tolist() == [0, EOS, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_row_is_marked_and_does_not_affect_others(bad: float) -> None:
    """A row of NaN, +inf or only -inf is not finite. Its code is 0, which is a valid index."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [bad] * 3, [2.0, 0.0, 1.0]])
    rows = SamplingRows.of([plain(0.9, 2, 0.9)] * 3)
    sampled = sample(logits, rows.first, torch.full((3,), 0.01))
    assert sampled.finite.tolist() == [True, False, True]
    assert sampled.codes[[0, 2]].tolist() == [1, 0]
    assert int(sampled.codes[1]) == 0


def test_single_nan_makes_the_row_non_finite() -> None:
    """The penalty and masks of codebook 0 keep the NaN."""
    logits = torch.zeros(2, V)
    logits[0, 3] = float("nan")
    rows = SamplingRows.of([plain(0.9, 2, 0.9)] * 2)
    processed = process_first_code_logits(
        logits,
        torch.zeros(2, V, dtype=torch.bool),
        frames=torch.tensor([5, 5]),
        allow_eos=torch.tensor([True, True]),
        repetition_penalty=rows.repetition_penalty,
        codebook_size=BOOK,
        eos=EOS,
    )
    assert sample(processed, rows.first, torch.zeros(2)).finite.tolist() == [False, True]


def test_bfloat16_logits_are_cast_to_float32_before_the_penalty() -> None:
    rows = SamplingRows.of([SamplingParams(1.0, 0, 1.0, 1.05, 1.0, 0, 1.0)])
    processed = process_first_code_logits(
        torch.full((1, V), 3.0, dtype=torch.bfloat16),
        torch.ones(1, V, dtype=torch.bool),
        frames=torch.tensor([5]),
        allow_eos=torch.tensor([True]),
        repetition_penalty=rows.repetition_penalty,
        codebook_size=BOOK,
        eos=EOS,
    )
    assert processed.dtype == torch.float32
    assert processed[0, 0].item() == pytest.approx(3.0 / 1.05, abs=1e-6)
