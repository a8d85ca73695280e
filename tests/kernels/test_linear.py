"""Native linears of every format and vector width: exact sums, and bit-identical rows in any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.backends.cpu.lm import NativeInt8Linear, NativeLinear, NativeLinearBase, native_language, native_linear
from legato.kernels.build import THIS_CPU, Unavailable
from legato.kernels.library import Library, library
from legato.kernels.structs import MAX_INT8_INPUTS
from legato.kernels.threads import set_num_threads
from legato.weights.quantized_linear import GROUP, Int8Linear, to_int4, to_int8
from tests.kernels.older_cpus import NO_TILES, OLDER, as_wanted, compiler_name

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LEVELS = 127 * 128
"""The largest quantized activation of an int8 linear."""
CPUS = [THIS_CPU, NO_TILES, *OLDER]
pytestmark = pytest.mark.skipif(isinstance(library(), Unavailable), reason="nothing compiled here")


def found(cpu: str) -> Library:
    made = library(compiler_name(cpu))
    if isinstance(made, Unavailable):
        pytest.skip(made.reason)
    return as_wanted(made, cpu)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def float_linear(weight: Tensor, cpu: str) -> NativeLinear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return NativeLinear(linear, found(cpu))


def make_linear(kind: str, weight: Tensor, cpu: str) -> tuple[NativeLinearBase, Tensor]:
    """A native linear, and the weights that it multiplies with, float64."""
    if kind in DTYPES:
        weight = weight.to(DTYPES[kind])
        return float_linear(weight, cpu), weight.double()
    store = to_int8(weight, None) if kind == "int8" else to_int4(weight)
    return native_linear(store, found(cpu)), store.dense().double()


def activation_steps(kind: str, x: Tensor) -> Tensor:
    """Largest error of a quantized activation, [rows, K]: half the scale of its row (int8) or group (int4)."""
    if kind == "int8":
        return (x.abs().amax(-1, keepdim=True) / (2 * LEVELS)).expand_as(x)
    groups = x.abs().view(len(x), -1, GROUP).amax(-1, keepdim=True) / (2 * 127)
    return groups.expand(-1, -1, GROUP).flatten(1)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["int8", "int4", *DTYPES])
@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 40),
    rows=st.integers(1, 35),
    outlier=st.sampled_from([1.0, 32.0, 1000.0]),
    seed=st.integers(0, 99),
)
def test_rows_are_batch_invariant_and_accurate(
    kind: str, cpu: str, inputs: int, outputs: int, rows: int, outlier: float, seed: int
) -> None:
    width = inputs * GROUP if kind == "int4" else 13 * inputs
    made, dense = make_linear(kind, drawn(outputs, width, seed=seed), cpu)
    x = drawn(rows, width, seed=seed + 1) * torch.logspace(-3, 3, rows)[:, None]
    x[:, seed % width] *= outlier
    y = made(x)
    assert torch.equal(y, torch.cat([made(row[None]) for row in x]))
    limit = 2e-6 * x.double().abs() @ dense.abs().T
    if kind not in DTYPES:
        limit += activation_steps(kind, x.double()) @ dense.abs().T
    assert ((y - x.double() @ dense.T).abs() <= limit + 1e-30).all()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["int8", "int4", *DTYPES])
def test_results_do_not_depend_on_threads(kind: str, cpu: str) -> None:
    made, _ = make_linear(kind, drawn(640, 1024, seed=1), cpu)
    x, results = drawn(19, 1024, seed=2), []
    for threads in (1, 2, 3):
        set_num_threads(threads)
        try:
            results.append(made(x))
        finally:
            set_num_threads(None)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["int8", "int4", *DTYPES])
def test_rows_that_are_not_finite_do_not_affect_others(kind: str, cpu: str) -> None:
    made, _ = make_linear(kind, drawn(39, 2 * GROUP, seed=1), cpu)
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
def test_int8_sums_are_exact(cpu: str, width: int, outputs: int, rows: int, seed: int) -> None:
    store = to_int8(drawn(outputs, width, seed=seed), None)
    x = drawn(rows, width, seed=seed + 1)
    assert torch.equal(NativeInt8Linear(store, found(cpu))(x), exact_int8(store, x))


def exact_int8(store: Int8Linear, x: Tensor) -> Tensor:
    """The product with integer sums, rounded once."""
    peak, top = x.abs().amax(-1, keepdim=True), torch.tensor(float(LEVELS))
    sums = (x * torch.div(top, peak)).round().double() @ store.values.double().T  # exact: less than 2^53
    return sums.float() * store.scales * torch.div(peak, top)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("width", [3072, MAX_INT8_INPUTS])
def test_the_largest_numbers_do_not_overflow(cpu: str, width: int) -> None:
    """All weights and activations at their limits, in the widest supported linear."""
    for sign in (1.0, -1.0):
        x, weight = torch.ones(9, width), sign * torch.ones(37, width)
        x[:, 1] = -1
        for kind in ("int8", "int4"):
            made, dense = make_linear(kind, weight, cpu)
            assert torch.allclose(made(x).double(), x.double() @ dense.T, rtol=1e-5)
        store = to_int8(weight, None)
        assert torch.equal(NativeInt8Linear(store, found(cpu))(x), exact_int8(store, x))
    weight = torch.ones(5, width)
    weight[:, ::2] = -1
    made, dense = make_linear("int4", weight, cpu)
    assert torch.allclose(made(weight[:1]).double(), weight[:1].double() @ dense.T, rtol=1e-5)


def test_int8_linears_that_could_overflow_are_not_native() -> None:
    """They stay as they are, so that the PyTorch backend executes them."""
    wide = nn.Sequential(to_int8(torch.ones(3, MAX_INT8_INPUTS + 1), None), to_int8(torch.ones(3, 5), None))
    native = native_language(wide, found(THIS_CPU))
    assert [type(each) for each in native] == [Int8Linear, NativeInt8Linear]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", DTYPES.values())
@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 200), outputs=st.integers(1, 20), rows=st.integers(1, 70), seed=st.integers(0, 99))
def test_integers_are_exact_with_float_weights(
    cpu: str, dtype: torch.dtype, width: int, outputs: int, rows: int, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    weight = torch.randint(-9, 10, (outputs, width), generator=source).float()
    x = torch.randint(-9, 10, (rows, width), generator=source).float()
    assert torch.equal(float_linear(weight.to(dtype), cpu)(x), x @ weight.T)
