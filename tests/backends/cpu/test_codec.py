"""The packed decoder: bit-identical for any window, batch and thread count; close to float64; reference unchanged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from legato.backends.cpu.backend import CpuBackend
from legato.backends.cpu.codec import pack_decoder, uses_amx
from legato.backends.cpu.codec_layers import PackedConv1d, PackedConvTranspose1d, PackedSnake
from legato.backends.cpu.panels import Packed, Panels, packed, steps_per_tile
from legato.config.model import CodecDecoderConfig
from legato.errors import StateError
from legato.kernels.build import THIS_CPU, Unavailable
from legato.kernels.codec_library import CodecLibrary, codec_library
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool, join_rows
from legato.models.codec.upsample import SnakeBeta
from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalLayer, identity
from tests.engine.tiny import tiny_model
from tests.kernels.older_cpus import NO_TILES, OLDER, as_wanted, compiler_name
from tests.models.codec.tiny_codec import DECODER, EMBEDDED, tiny_decoder

BOTH = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(isinstance(codec_library(), Unavailable), reason="no CPU kernels here")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def library(cpu: str = THIS_CPU) -> CodecLibrary:
    found = codec_library(compiler_name(cpu))
    if isinstance(found, Unavailable):
        pytest.skip(found.reason)
    return as_wanted(found, cpu)


@lru_cache
def pair(config: CodecDecoderConfig, dtype: torch.dtype, cpu: str = THIS_CPU) -> tuple[CodecDecoder, CodecDecoder]:
    """The same decoder as reference and packed."""
    reference = tiny_decoder(config, dtype=dtype)
    return reference, pack_decoder(reference, library(cpu))


def codes_of(config: CodecDecoderConfig, rows: int, frames: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (rows, frames, config.num_quantizers), generator=generator)


def whole(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    samples: Tensor = decoder(decoder.initial_history(codes.shape[0]), codes)[0]
    return samples


def streamed(decoder: CodecDecoder, codes: Tensor, sizes: list[int], *, reset_history: bool = False) -> Tensor:
    history, parts = decoder.initial_history(codes.shape[0]), []
    for window in torch.split(codes, sizes, dim=1):
        samples, history = decoder(decoder.initial_history(codes.shape[0]) if reset_history else history, window)
        parts.append(samples)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("config", [DECODER, EMBEDDED], ids=["official graph", "embedded graph"])
@pytest.mark.parametrize("dtype", BOTH)
@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=8),
    rows=st.integers(1, 5),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_windows_batches_and_threads_are_bit_identical(
    config: CodecDecoderConfig, dtype: torch.dtype, sizes: list[int], rows: int, threads: int, seed: int
) -> None:
    with torch.inference_mode():
        decoder, codes = pair(config, dtype)[1], codes_of(config, rows, sum(sizes), seed)
        torch.set_num_threads(1)
        single_rows = torch.cat([whole(decoder, codes[row : row + 1]) for row in range(rows)])
        torch.set_num_threads(threads)
        assert torch.equal(streamed(decoder, codes, sizes), single_rows)
        assert not torch.equal(streamed(decoder, codes, sizes, reset_history=True), single_rows)


@pytest.mark.parametrize("cpu", [NO_TILES, *OLDER])
@pytest.mark.parametrize("dtype", BOTH)
def test_bit_identical_with_narrow_vectors(dtype: torch.dtype, cpu: str) -> None:
    reference, decoder = pair(DECODER, dtype, cpu)
    codes = codes_of(DECODER, 3, 12)
    single_rows = torch.cat([whole(decoder, codes[row : row + 1]) for row in range(3)])
    assert torch.equal(streamed(decoder, codes, [1, 4, 5, 2]), single_rows)
    exact = whole(copy.deepcopy(reference).double(), codes)
    errors = [float((whole(each, codes) - exact).abs().max()) for each in (decoder, reference)]
    assert errors[0] <= 3 * errors[1]
    assert float((single_rows.roll(1, 0) - exact).abs().max()) > 9 * errors[1]


@pytest.mark.parametrize("dtype", BOTH)
def test_rows_of_different_lengths_are_bit_identical_to_single_rows(dtype: torch.dtype) -> None:
    decoder, lengths = pair(DECODER, dtype)[1], [4, 0, 2]
    codes = codes_of(DECODER, 3, 8)
    _, start = decoder(decoder.initial_history(3), codes[:, :4])
    samples, after = decoder(start, codes[:, 4:], torch.tensor(lengths))
    for row, length in enumerate(lengths):
        own, history = decoder(start.select([row]), codes[row : row + 1, 4 : 4 + length])
        assert torch.equal(samples[row : row + 1, : length * decoder.frame_samples], own)
        assert not samples[row, length * decoder.frame_samples :].any()
        assert same(after.select([row]), history)


def same(one: CodecHistory, other: CodecHistory) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


@pytest.mark.parametrize("dtype", BOTH)
def test_nan_stays_in_its_row(dtype: torch.dtype) -> None:
    decoder, codes = pair(DECODER, dtype)[1], codes_of(DECODER, 2, 4)
    poisoned = CodecStatePool(decoder.initial_history(1)).gather(CodecRows.of([0]))
    samples, _ = decoder(join_rows([poisoned, decoder.initial_history(1)]), codes)
    assert samples[0].isnan().any()
    assert torch.equal(samples[1:], whole(decoder, codes[1:]))


@pytest.mark.parametrize("config", [DECODER, EMBEDDED], ids=["official graph", "embedded graph"])
def test_float32_is_close_to_float64(config: CodecDecoderConfig) -> None:
    codes = codes_of(config, 2, 60)
    exact = whole(tiny_decoder(config), codes)
    reference, packed_decoder = (
        float((whole(each, codes) - exact).abs().max()) for each in pair(config, torch.float32)
    )
    assert packed_decoder <= 2e-5
    assert packed_decoder <= 3 * reference


def test_bfloat16_error_is_not_larger_than_torchs() -> None:
    codes = codes_of(DECODER, 2, 60)
    reference, packed_decoder = pair(DECODER, torch.bfloat16)
    exact = whole(copy.deepcopy(reference).float(), codes)
    errors = [float((whole(each, codes) - exact).square().mean().sqrt()) for each in (reference, packed_decoder)]
    assert 0.0 < errors[1] <= 1.2 * errors[0]


@pytest.mark.parametrize("dtype", BOTH)
def test_packing_does_not_change_the_reference_decoder(dtype: torch.dtype) -> None:
    reference, codes = tiny_decoder(dtype=dtype), codes_of(DECODER, 1, 6)
    weights = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    before = whole(reference, codes)
    packed_decoder = pack_decoder(reference, library())
    whole(packed_decoder, codes)
    assert not any(isinstance(part, Packed) for part in reference.modules())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in reference.state_dict().items())
    assert torch.equal(whole(reference, codes), before)


def test_packed_weights_cannot_be_copied_moved_or_converted() -> None:
    packed_decoder = pair(DECODER, torch.float32)[1]
    for move in (packed_decoder.double, packed_decoder.bfloat16, lambda: packed_decoder.to("cpu")):
        with pytest.raises(StateError, match="cannot be moved or converted"):
            move()
    with pytest.raises(StateError, match="copy the module of the loaded model"):
        copy.deepcopy(packed_decoder)


def test_another_dtype_is_refused() -> None:
    decoder = pair(DECODER, torch.float32)[1]
    with pytest.raises(StateError, match=r"need torch\.float32"):
        decoder.pre_conv(torch.zeros(1, 1, 16).bfloat16(), torch.zeros(1, 2, 16).bfloat16())


def test_description_names_the_codec_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Unavailable("no layers in this test")
    assert CpuBackend(tiny_model(), none, library()).description[1].startswith("codec by native kernels")
    codec_library.cache_clear()
    monkeypatch.setenv("LEGATO_NATIVE", "0")
    backend = CpuBackend(tiny_model(), none, codec_library())
    codec_library.cache_clear()
    assert backend.description[1] == "codec by PyTorch (LEGATO_NATIVE is 0)"
    assert type(backend.decoder.pre_conv) is CausalConv1d


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", [THIS_CPU, NO_TILES])
@pytest.mark.parametrize("dtype", BOTH)
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([1, 2, 3, 7, "transposed"]),
    dilation=st.integers(1, 9),
    sizes=st.tuples(
        st.one_of(st.integers(1, 40), st.integers(1, 12).map(lambda eights: 8 * eights)), st.integers(1, 70)
    ),
    rows=st.integers(1, 3),
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_convolutions_are_exact_on_integers(
    dtype: torch.dtype,
    cpu: str,
    kind: int | str,
    dilation: int,
    sizes: tuple[int, int],
    rows: int,
    count: int,
    seed: int,
) -> None:
    """Integer sums are exact in any order, so results are bit-identical to the reference after the same rounding."""
    inputs = sizes[0] + (sizes[0] % 2 if dtype == torch.bfloat16 else 0)
    generator = torch.Generator().manual_seed(seed)
    layer: CausalLayer
    if isinstance(kind, str):
        layer = CausalConvTranspose1d(inputs, sizes[1], 6, stride=3)
    else:
        layer = CausalConv1d(inputs, sizes[1], kind, dilation=dilation)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randint(-4, 5, parameter.shape, generator=generator))
    packed_decoder = packed_layer(copy.deepcopy(layer).to(dtype), cpu)
    x = torch.randint(-9, 10, (rows, count, inputs), generator=generator).float()
    past = torch.randint(-9, 10, (rows, *layer.history_shape), generator=generator).float()
    for one, other in zip(layer(x, past), packed_decoder(x.to(dtype), past.to(dtype)), strict=True):
        assert torch.equal(one.to(dtype), other)


def packed_layer(layer: CausalLayer, cpu: str = THIS_CPU) -> CausalLayer:
    if isinstance(layer, CausalConvTranspose1d):
        return PackedConvTranspose1d(layer, library(cpu))
    assert isinstance(layer, CausalConv1d)
    return PackedConv1d(layer, library(cpu))


def test_amx_tiles_are_full_or_not_used() -> None:
    assert [steps_per_tile(steps) for steps in (384, 48, 20, 36, 8, 13, 7, 17, 4, 1)] == [
        16,
        16,
        10,
        12,
        8,
        13,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.skipif(not getattr(codec_library(), "amx", False), reason="this machine has no AMX")
def test_amx_is_used_for_bfloat16_only() -> None:
    decoders = [tiny_decoder(dtype=dtype) for dtype in BOTH]
    decoders = [pack_decoder(each, library()) for each in decoders]
    assert [uses_amx(each) for each in decoders] == [False, True]
    panels = [[part for part in each.modules() if isinstance(part, Panels)] for each in decoders]
    assert not any(part.args.tile_steps for part in panels[0])
    assert all(part.args.tile_steps for part in panels[1] if part.width > 8 and part.out_features > 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [1, 5, 16, 17, 32, 40, 48, 50, 96])
@pytest.mark.parametrize("panel", [8, 16, 32])
def test_packed_weights_are_in_the_order_of_the_kernel(outputs: int, panel: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(outputs, 10).to(dtype)
    flat = packed(matrix, panel)
    step = 4 // matrix.element_size()
    if outputs == 1:
        assert torch.equal(flat, matrix[0])
        return
    for n in range(outputs):  # [K in steps][output][step] in each panel; the last panel may have half the outputs
        start, width = n // panel * panel, panel
        if start + panel > flat.numel() // 10:
            start, width = start + (n - start) // (panel // 2) * (panel // 2), panel // 2
        own = flat[start * 10 : (start + width) * 10].view(10 // step, width, step)[:, n - start]
        assert torch.equal(own.flatten(), matrix[n])


def identity_convolution_and_snake(alpha: Tensor) -> tuple[PackedConv1d, PackedSnake]:
    """SnakeBeta before an identity convolution."""
    snake, layer = SnakeBeta(alpha.shape[0]), CausalConv1d(alpha.shape[0], alpha.shape[0], 1)
    snake.alpha.data.copy_(alpha)
    layer.conv.weight.data.copy_(torch.eye(alpha.shape[0])[..., None])
    assert layer.conv.bias is not None
    nn.init.zeros_(layer.conv.bias)
    return PackedConv1d(layer, library()), PackedSnake(snake)


def test_snake_is_accurate_for_small_and_large_arguments() -> None:
    layer, snake = identity_convolution_and_snake(torch.zeros(16))
    for size in (1e-3, 1.0, 30.0, 1e3, 1e5, 1e6):
        x = size * torch.randn(1, 500, 16, generator=torch.Generator().manual_seed(3))
        wave = layer(x, x[:, :0], activation=snake)[0].double() - x.double()
        exact = x.double().sin().square()
        assert float((wave - exact).abs().max()) <= 2e-7 + 1e-7 * float(x.abs().max())  # rounding of the sum
    for bad in (float("nan"), float("inf")):
        assert layer(torch.full((1, 1, 16), bad), torch.zeros(1, 0, 16), activation=snake)[0].isnan().all()


def test_packed_layer_requires_a_packed_activation() -> None:
    layer, _ = identity_convolution_and_snake(torch.zeros(4))
    x = torch.randn(1, 3, 4)
    assert torch.equal(layer(x, x[:, :0], activation=identity)[0], x)
    with pytest.raises(StateError, match="cannot apply"):
        layer(x, x[:, :0], activation=SnakeBeta(4))
