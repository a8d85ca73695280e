"""Native linears: exact where that can be stated, the same bits in any batch, for vectors of any width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.backends.cpu.lm import NativeInt8Linear, NativeLinear, NativeLinearBase, native_linear
from legato.kernels.build import THIS_CPU, Unavailable
from legato.kernels.library import Library, library
from legato.weights.quantized_linear import GROUP, to_int4, to_int8
from tests.kernels.older_cpus import NO_TILES, OLDER, as_wanted, compiler_name

DTYPES = {"halves": torch.bfloat16, "floats": torch.float32}
CPUS = [THIS_CPU, NO_TILES, *OLDER]
pytestmark = pytest.mark.skipif(isinstance(library(), Unavailable), reason="nothing compiled here")


def found(cpu: str) -> Library:
    made = library(compiler_name(cpu))
    if isinstance(made, Unavailable):
        pytest.skip(made.reason)
    return as_wanted(made, cpu)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unrounded(weight: Tensor, cpu: str) -> NativeLinear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return NativeLinear(linear, found(cpu))


def linear(kind: str, weight: Tensor, cpu: str) -> tuple[NativeLinearBase, Tensor]:
    """A compiled map and the weights that it stands for, float64."""
    if kind in DTYPES:
        weight = weight.to(DTYPES[kind])
        return unrounded(weight, cpu), weight.double()
    store = to_int8(weight, None) if kind == "bytes" else to_int4(weight)
    return native_linear(store, found(cpu)), store.dense().double()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["bytes", "fours", *DTYPES])
@settings(max_examples=25, deadline=None)
@given(inputs=st.integers(1, 9), outputs=st.integers(1, 40), rows=st.integers(1, 35), seed=st.integers(0, 99))
def test_a_row_is_the_same_in_any_company_and_near_the_weights(
    kind: str, cpu: str, inputs: int, outputs: int, rows: int, seed: int
) -> None:
    width = inputs * GROUP if kind == "fours" else 13 * inputs
    made, dense = linear(kind, drawn(outputs, width, seed=seed), cpu)
    x = drawn(rows, width, seed=seed + 1) * torch.logspace(-3, 3, rows)[:, None]
    y = made(x)
    assert torch.equal(y, torch.cat([made(row[None]) for row in x]))
    size = (x.double().abs() @ dense.abs().T).clamp(min=1e-30)
    limit = 1e-6 if kind in DTYPES else 1 / 127  # a step of a rounded input is its row's peak over 127
    peaks = x.abs().amax(-1, keepdim=True).double() * dense.abs().sum(-1) / size
    assert ((y - x.double() @ dense.T).abs() <= limit * size * peaks.clamp(min=1)).all()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["bytes", "fours", *DTYPES])
def test_what_is_not_finite_stays_in_its_row(kind: str, cpu: str) -> None:
    made, _ = linear(kind, drawn(39, 2 * GROUP, seed=1), cpu)
    x = drawn(5, 2 * GROUP, seed=2)
    good = made(x)
    for bad in (float("nan"), float("inf"), float("-inf")):
        broken = x.clone()
        broken[2, 5] = bad
        y = made(broken)
        assert not y[2].isfinite().any()
        assert torch.equal(y[[0, 1, 3, 4]], good[[0, 1, 3, 4]])


WIDTHS = st.one_of(st.integers(1, 300), st.integers(1, 5).map(lambda tiles: 64 * tiles))


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=40, deadline=None)
@given(width=WIDTHS, outputs=st.integers(1, 100), rows=st.integers(1, 70), seed=st.integers(0, 99))
def test_bytes_are_whole_sums_to_the_bit(cpu: str, width: int, outputs: int, rows: int, seed: int) -> None:
    store = to_int8(drawn(outputs, width, seed=seed), None)
    x = drawn(rows, width, seed=seed + 1)
    peak, top = x.abs().amax(-1, keepdim=True), torch.tensor(127.0)
    whole = (x * torch.div(top, peak)).round().long() @ store.values.long().T
    assert torch.equal(NativeInt8Linear(store, found(cpu))(x), whole.float() * store.scales * torch.div(peak, top))


@pytest.mark.parametrize("cpu", CPUS)
def test_the_largest_numbers_overflow_nothing(cpu: str) -> None:
    """All weights and all inputs at their ends, in a map as wide as any of the official ones."""
    for sign in (1.0, -1.0):
        x, weight = torch.ones(9, 3072), sign * torch.ones(37, 3072)
        for kind in ("bytes", "fours"):
            made, dense = linear(kind, weight, cpu)
            assert torch.allclose(made(x).double(), x.double() @ dense.T, rtol=1e-5)
    weight = torch.ones(5, 3072)
    weight[:, ::2] = -1
    made, dense = linear("fours", weight, cpu)
    assert torch.allclose(made(weight[:1]).double(), weight[:1].double() @ dense.T, rtol=1e-5)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", DTYPES.values())
@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 200), outputs=st.integers(1, 20), rows=st.integers(1, 70), seed=st.integers(0, 99))
def test_whole_numbers_are_exact_with_unrounded_weights(
    cpu: str, dtype: torch.dtype, width: int, outputs: int, rows: int, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    weight = torch.randint(-9, 10, (outputs, width), generator=source).float()
    x = torch.randint(-9, 10, (rows, width), generator=source).float()
    assert torch.equal(unrounded(weight.to(dtype), cpu)(x), x @ weight.T)
