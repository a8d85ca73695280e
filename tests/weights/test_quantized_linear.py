"""Quantized linears: error, batch invariance, and agreement with the reference without fast kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from legato.backends.torch_quantized import TorchInt4Linear, TorchInt8Linear, TorchKernels, torch_linear
from legato.weights.quantized_linear import GROUP, QuantizedLinear, fits_int4, to_int4, to_int8

NO_KERNELS = TorchKernels(int8=False, vnni=False, int4=False)
HERE = TorchKernels.detect()
OUTPUTS, INPUTS = 48, 2 * GROUP


def weight(seed: int = 0) -> Tensor:
    drawn = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(seed))
    return drawn.div(INPUTS**0.5)


def rows(count: int, seed: int = 1) -> Tensor:
    """Rows of very different magnitude; a common activation scale would lose the small ones."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(count, INPUTS, generator=source) * torch.logspace(-3, 3, count)[:, None]


def quantized(bits: int) -> QuantizedLinear:
    return to_int8(weight(), None) if bits == 8 else to_int4(weight())


def multiplied_weight(linear: nn.Module) -> Tensor:
    """The effective weight [N, K] of a linear without bias, from unit inputs."""
    weights: Tensor = linear(torch.eye(INPUTS)).T
    return weights


def relative(got: Tensor, wanted: Tensor) -> float:
    """The largest error of a row relative to its largest value."""
    return float(((got - wanted).abs().amax(-1) / wanted.abs().amax(-1)).max())


def test_int8_error_is_half_a_step() -> None:
    steps = weight().abs().amax(1, keepdim=True) / 127
    assert ((to_int8(weight(), None).dense() - weight()).abs() <= 0.501 * steps).all()


def test_int4_error_is_half_a_step() -> None:
    """A step is 1/15 of the group's range; bfloat16 scales and zero points add a little."""
    groups = weight().view(OUTPUTS, -1, GROUP)
    steps = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
    error = (to_int4(weight()).dense().view_as(groups) - groups).abs()
    assert (error <= 0.6 * steps).all()
    assert error.max() > 0.2 * steps.max()


@pytest.mark.parametrize(("bits", "limit"), [(8, 2e-4), (4, 0.01)])
@pytest.mark.parametrize("kernels", [HERE, NO_KERNELS, TorchKernels(int8=HERE.int8, vnni=False, int4=False)])
def test_all_implementations_use_the_stored_weights(bits: int, limit: float, kernels: TorchKernels) -> None:
    """Within the quantization error of the input; control: other weights differ by more."""
    linear = torch_linear(quantized(bits), kernels, torch.float32)
    x = rows(5)
    with torch.inference_mode():
        assert relative(linear(x), x @ quantized(bits).dense().T) < limit * (1 if kernels.vnni else 4)
        assert relative(linear(x), x @ weight(9).T) > 0.3
    # The int4 kernel returns bfloat16.
    assert torch.allclose(
        multiplied_weight(linear), quantized(bits).dense(), rtol=1e-5 if bits == 8 else 2**-8, atol=1e-6
    )


def test_without_kernels_it_is_an_ordinary_linear() -> None:
    for bits in (8, 4):
        linear = torch_linear(quantized(bits), NO_KERNELS, torch.bfloat16)
        assert isinstance(linear, nn.Linear)
        assert linear.weight.dtype == torch.bfloat16


@pytest.mark.skipif(not HERE.int8, reason="PyTorch has no fast int8 kernels for this CPU")
@pytest.mark.parametrize("bits", [8, 4])
def test_row_is_bit_identical_in_any_batch(bits: int) -> None:
    linear = torch_linear(quantized(bits), HERE, torch.float32)
    assert isinstance(linear, TorchInt8Linear | TorchInt4Linear)
    x = rows(40)
    with torch.inference_mode():
        together = linear(x.view(4, 10, INPUTS)).view(40, OUTPUTS)
        alone = torch.cat([linear(x[at : at + 1]) for at in range(40)])
        few = linear(x[7:10])
    assert torch.equal(together, alone)
    assert torch.equal(few, alone[7:10])


@pytest.mark.skipif(not HERE.int8, reason="PyTorch has no fast int8 kernels for this CPU")
def test_control_one_scale_for_all_rows() -> None:
    """torch's dynamic quantization has one scale per batch, so small rows lose precision."""
    x = rows(40)
    dynamic = torch.ops.quantized.linear_dynamic
    packed = torch_linear(quantized(8), HERE, torch.float32)._packed
    assert relative(dynamic(x, packed, False), x @ quantized(8).dense().T) > 0.5


@pytest.mark.parametrize("bits", [8, 4])
def test_zero_and_non_finite_rows_do_not_affect_others(bits: int) -> None:
    linear = torch_linear(quantized(bits), HERE, torch.float32)
    x = rows(4)
    clean = linear(x)
    x[1], x[2, 5] = 0.0, float("nan")
    got = linear(x)
    assert torch.equal(got[[0, 3]], clean[[0, 3]])
    assert not got[2].isfinite().any()
    assert (got[1] == 0).all()


def test_bias_is_added_after_the_scale() -> None:
    bias = torch.arange(OUTPUTS, dtype=torch.float32)
    linear = torch_linear(to_int8(weight(), bias), HERE, torch.float32)
    x = rows(5)
    with torch.inference_mode():
        assert torch.allclose(
            linear(x) - bias, torch_linear(quantized(8), HERE, torch.float32)(x), atol=1e-4, rtol=1e-4
        )


def test_shapes_without_int4() -> None:
    assert fits_int4(INPUTS, OUTPUTS)
    assert not fits_int4(INPUTS + 8, OUTPUTS)
    assert not fits_int4(INPUTS, OUTPUTS + 8)
