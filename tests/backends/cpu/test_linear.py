"""Native GEMMs are exact for all sizes; native attention equals torch's for short and long contexts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.backends.cpu.lm import NativeInt8Linear, NativeLayers, NativeLinear
from legato.backends.select import build_backend, load_backend
from legato.kernels.library import Library, library
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, RowKVView, TalkerCache, poison
from legato.weights.loading import load_model
from legato.weights.quantized_linear import Int8Linear
from tests.conftest import TinyCheckpoint

LIBRARY = library()
pytestmark = pytest.mark.skipif(not isinstance(LIBRARY, Library), reason=f"no CPU kernels here: {LIBRARY}")


def made(inputs: int, outputs: int, rows: int) -> tuple[NativeInt8Linear, Tensor]:
    """Random weights and inputs; the weights include both ends of the int8 range."""
    assert isinstance(LIBRARY, Library)
    source = torch.Generator().manual_seed(inputs + 1000 * outputs)
    store = Int8Linear(inputs, outputs, bias=False)
    store.values.copy_(torch.randint(-128, 128, (outputs, inputs), generator=source))
    store.scales.copy_(torch.rand(outputs, generator=source) + 0.5)
    return NativeInt8Linear(store, LIBRARY), torch.randn(rows, inputs, generator=source)


@settings(max_examples=60, deadline=None)
@given(inputs=st.integers(1, 400), outputs=st.integers(1, 9), rows=st.integers(1, 19))
def test_sums_are_exact(inputs: int, outputs: int, rows: int) -> None:
    linear, x = made(inputs, outputs, rows)
    got = linear(x)
    peaks = x.abs().amax(1, keepdim=True)
    levels = 127 * 128
    numbers = (x * (torch.full_like(peaks, levels) / peaks)).round()
    wanted = (numbers.double() @ linear.values.double().T).float() * linear.scales * (peaks / levels)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 19])
def test_row_does_not_depend_on_the_batch(rows: int) -> None:
    linear, x = made(1030, 33, rows)
    together = linear(x)
    assert torch.equal(together, torch.cat([linear(row[None]) for row in x]))
    assert rows == 1 or not torch.equal(together.roll(1, 0), together)


def made_half(inputs: int, outputs: int, rows: int) -> tuple[NativeLinear, Tensor]:
    assert isinstance(LIBRARY, Library)
    source = torch.Generator().manual_seed(inputs + 1000 * outputs)
    linear = nn.Linear(inputs, outputs, bias=False)
    weight = torch.randn(outputs, inputs, generator=source).bfloat16()
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return NativeLinear(linear, LIBRARY), torch.randn(rows, inputs, generator=source)


@settings(max_examples=60, deadline=None)
@given(inputs=st.integers(1, 400), outputs=st.integers(1, 9), rows=st.integers(1, 40))
def test_bfloat16_weights_are_multiplied_in_float32(inputs: int, outputs: int, rows: int) -> None:
    """The error is that of float32 sums; inputs rounded to bfloat16 would have a much larger one."""
    linear, x = made_half(inputs, outputs, rows)
    weight = linear.weight.double()
    wanted, reach = x.double() @ weight.T, x.double().abs() @ weight.abs().T
    assert ((linear(x) - wanted).abs() <= 1e-6 * reach).all()
    rounded = x.bfloat16().double() @ weight.T
    # The control needs several values: a single rounding error may happen to be tiny.
    assert min(inputs, rows * outputs) < 8 or not ((rounded - wanted).abs() <= 1e-6 * reach).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 8, 12, 31, 32, 33, 70])
def test_row_with_bfloat16_weights_does_not_depend_on_the_batch(rows: int) -> None:
    linear, x = made_half(1030, 33, rows)
    together = linear(x)
    assert torch.equal(together, torch.cat([linear(row[None]) for row in x]))
    x[0, 5] = float("nan")
    poisoned = linear(x)
    assert poisoned[0].isnan().all()
    assert torch.equal(poisoned[1:], together[1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_checkpoint_is_used_without_a_copy(dtype: str, tiny_checkpoint: TinyCheckpoint) -> None:
    """Native layers equal the reference: within float32 rounding, and in bfloat16 with a smaller error."""
    folder = tiny_checkpoint("tiny-custom-voice")
    model = load_model(folder, talker_dtype=dtype)
    ready, plain = (build_backend(model, native=native).talker for native in (True, False))
    exact = load_model(folder).talker
    assert isinstance(ready.model.layers, NativeLayers)
    x = torch.randn(2, 19, exact.config.stack.hidden_size, generator=torch.Generator().manual_seed(3)).bfloat16()

    def hidden(talker: Talker, kept: torch.dtype) -> Tensor:
        cache = TalkerCache.allocate(talker.config.stack, 3, 19, kept)
        of = x.to(talker.codec_head.weight.dtype)
        return talker.forward_all(cache, KVRows.of([2, 0]), of, torch.zeros(2, dtype=torch.int64)).double()

    with torch.inference_mode():
        wanted = hidden(exact, torch.float32)
        got, usual = (hidden(each, getattr(torch, dtype)) for each in (ready, plain))
    worst, before = (got - wanted).abs().max(), (usual - wanted).abs().max()
    assert worst < 2e-5 if dtype == "float32" else worst < before
    assert not torch.equal(got, usual), "the kernels were not used"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_many_positions_equals_torch(
    dtype: torch.dtype, tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """37 positions (two blocks of 16 and a rest), one per call; bit-identical in one call."""
    talker = load_backend(tiny_checkpoint("tiny-custom-voice"), quant="int8").talker
    x = torch.randn(2, 37, talker.config.stack.hidden_size, generator=torch.Generator().manual_seed(3))

    def hidden(step: int) -> Tensor:
        cache = TalkerCache.allocate(talker.config.stack, 3, 37, dtype)
        poison(cache, KVRows.of(range(3)))
        rows, parts = KVRows.of([2, 0]), []
        for start in range(0, 37, step):
            part = x[:, start : start + step]
            parts.append(talker.forward_all(cache, rows, part, torch.full((2,), start)))
        return torch.cat(parts, dim=1)

    with torch.inference_mode():
        got = hidden(1)
        assert torch.equal(hidden(37), got)
        monkeypatch.setattr(RowKVView, "locations", lambda _: None)
        wanted = hidden(1)
    assert (got - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert not torch.equal(got, wanted), "PyTorch's attention was not used"
    assert (got[:, 20] - got[:, 36]).abs().max() > 0.3 * got.abs().max()
