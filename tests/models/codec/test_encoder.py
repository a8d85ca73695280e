"""Encoding in pieces, in batches and in one call gives the same codes, also if the last frame is padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from legato.errors import ReferenceAudioError
from legato.models.codec import encoder as encoder_module
from legato.models.codec.encoder import CodecEncoder, pad_to_stride
from legato.models.layers.attention import KeyValues
from legato.models.layers.conv import CausalConv1d
from tests.models.codec.tiny_codec import ENCODER, ENCODER_FRAME_SAMPLES, tiny_encoder


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.inference_mode():
        yield


def samples_of(length: int, *, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed))


def in_pieces(encoder: CodecEncoder, samples: Tensor, sizes: list[int]) -> Tensor:
    """Codes if pieces of `sizes` arrive, and the remaining samples with `finish`."""
    history, parts, index = encoder.initial_history(samples.shape[0]), [], 0
    for size in sizes:
        codes, history = encoder(history, samples[:, index : index + size])
        parts.append(codes)
        index += size
    codes, frames = encoder.finish(history, samples[:, index:])
    assert codes.shape[1] == int(frames.max())
    return torch.cat([*parts, codes], dim=1)


def padded_conv(layer: CausalConv1d, x: Tensor, mode: str = "constant") -> Tensor:
    """A convolution over the whole signal as in the official package, with explicit padding."""
    padded = functional.pad(x, (layer.history_length, -x.shape[-1] % layer.stride), mode=mode)
    return functional.conv1d(padded, layer.conv.weight, layer.conv.bias, stride=layer.stride, dilation=layer.dilation)


def independent_latents(encoder: CodecEncoder, samples: Tensor) -> Tensor:
    """Independent reference of the encoder up to its quantizer, without windows or histories: [B, T, width]."""
    x = samples[:, None]
    for layer in encoder.encoder.layers:
        if isinstance(layer, CausalConv1d):
            x = padded_conv(layer, x)
        elif isinstance(layer, encoder_module.ResidualBlock):
            first, second = layer.block[1], layer.block[3]
            assert isinstance(first, CausalConv1d)
            assert isinstance(second, CausalConv1d)
            x = x + padded_conv(second, functional.elu(padded_conv(first, functional.elu(x))))
        else:
            x = functional.elu(x)
    x = x.transpose(1, 2)
    x, _ = encoder.encoder_transformer(x, [KeyValues(*(x.new_zeros(1, 2, 0, 4),) * 2)] * 2, 0)
    return padded_conv(encoder.downsample, x.transpose(1, 2), mode="replicate").transpose(1, 2)


@pytest.mark.parametrize("length", [1, 5, 11, 12, 13, 100, 144, 150])
def test_equals_the_padded_reference(length: int) -> None:
    encoder, samples = tiny_encoder(), samples_of(length)
    codes, frames = encoder.encode(samples)
    assert frames.tolist() == [-(-length // ENCODER_FRAME_SAMPLES)]
    assert torch.equal(codes, encoder.quantizer(independent_latents(encoder, samples)))


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), max_size=8), rest=st.integers(1, 30), rows=st.integers(1, 2))
def test_pieces_of_any_size(sizes: list[int], rest: int, rows: int) -> None:
    with torch.inference_mode():
        encoder, samples = tiny_encoder(), samples_of(sum(sizes) + rest, rows=rows, seed=rest)
        assert torch.equal(in_pieces(encoder, samples, sizes), encoder.encode(samples)[0])


@pytest.mark.parametrize("size", [2, 12])
def test_long_reference_in_pieces(size: int) -> None:
    """375 frames (30 s), in pieces shorter than a kernel and of one frame (R06)."""
    encoder, length = tiny_encoder(), 375 * ENCODER_FRAME_SAMPLES
    samples = samples_of(length)
    whole, _ = encoder.encode(samples)
    assert whole.shape == (1, 375, ENCODER.valid_quantizers)
    assert len(set(whole.flatten().tolist())) > 8
    assert torch.equal(in_pieces(encoder, samples, [size] * (length // size)), whole)


def test_control_dropped_history() -> None:
    encoder, samples = tiny_encoder(), samples_of(240)
    whole, _ = encoder.encode(samples)
    first, history = encoder(encoder.initial_history(1), samples[:, :120])
    for broken in (
        encoder.initial_history(1),
        replace(history, convs=encoder.initial_history(1).convs),
        replace(history, latent_tail=encoder.initial_history(1).latent_tail),
        replace(history, keys=encoder.initial_history(1).keys, values=encoder.initial_history(1).values, positions=0),
    ):
        rest, _ = encoder.finish(broken, samples[:, 120:])
        assert not torch.equal(torch.cat((first, rest), dim=1), whole)


def test_different_lengths_in_one_batch() -> None:
    """1.0 s, 3.7 s and others, batched and alone; samples after a row's end have no effect (R17)."""
    encoder, lengths = tiny_encoder(), [150, 555, 12, 1, 37]
    samples = samples_of(555, rows=5)
    for row, length in enumerate(lengths):
        samples[row, length:] = 50.0
    codes, frames = encoder.encode(samples, torch.tensor(lengths))
    assert frames.tolist() == [13, 47, 1, 1, 4]
    for row, (length, count) in enumerate(zip(lengths, frames.tolist(), strict=True)):
        alone, _ = encoder.encode(samples[row : row + 1, :length])
        assert torch.equal(codes[row : row + 1, :count], alone)
        assert (codes[row, count:] == -1).all()
    unmasked, _ = encoder.encode(samples)
    assert not torch.equal(unmasked[0, :13], codes[0, :13])


def test_end_is_padded_with_zeros_or_the_last_value() -> None:
    x, lengths = torch.arange(1.0, 11).view(2, 5, 1), torch.tensor([5, 2])
    zeros, frames = pad_to_stride(x, lengths, 3, replicate=False)
    assert zeros[..., 0].tolist() == [[1, 2, 3, 4, 5, 0], [6, 7, 0, 0, 0, 0]]
    assert frames.tolist() == [2, 1]
    last, _ = pad_to_stride(x, lengths, 3, replicate=True)
    assert last[..., 0].tolist() == [[1, 2, 3, 4, 5, 5], [6, 7, 7, 7, 7, 7]]


def test_attention_reaches_over_the_whole_reference() -> None:
    """The official encoder has no attention window: the first frame affects codes hundreds of frames later."""
    encoder = tiny_encoder()
    samples = samples_of(300 * ENCODER_FRAME_SAMPLES)
    changed = samples.clone()
    changed[:, :ENCODER_FRAME_SAMPLES] *= -3.0
    late = [independent_latents(encoder, each)[:, -1] for each in (samples, changed)]
    assert (late[0] - late[1]).abs().max() > 1e-6


def test_silence_and_empty_input() -> None:
    encoder = tiny_encoder()
    codes, frames = encoder.encode(torch.zeros(1, 0))
    assert codes.shape == (1, 0, ENCODER.valid_quantizers)
    assert frames.tolist() == [0]
    history = encoder.initial_history(1)
    codes, history = encoder(history, torch.zeros(1, 7))
    assert codes.shape[1] == 0
    assert history.pending.shape[1] == 7


def test_reference_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "REFERENCE_LIMIT_FRAMES", 10)
    encoder = tiny_encoder()
    fits = samples_of(10 * ENCODER_FRAME_SAMPLES)
    encoder.encode(fits)
    with pytest.raises(ReferenceAudioError, match=r"at least 11 frames, and the limit is 10 \(120 samples\)"):
        encoder.encode(samples_of(10 * ENCODER_FRAME_SAMPLES + 1))
    _, history = encoder(encoder.initial_history(1), fits)
    with pytest.raises(ReferenceAudioError):
        encoder.finish(history, samples_of(1))


def test_levels_quantize_residuals_and_both_quantizers_have_the_same_input() -> None:
    """Each acoustic level takes the entry nearest to the residual of the previous levels."""
    encoder = tiny_encoder()
    weights = encoder.quantizer.state_dict()
    latent = torch.randn(1, 5, ENCODER.hidden_size)
    codes = encoder.quantizer(latent)[0]
    for kind, levels, first in (("semantic", 1, 0), ("acoustic", 3, 1)):
        prefix = f"{kind}_residual_vector_quantizer."
        left = latent[0] @ weights[prefix + "input_proj.weight"][..., 0].T
        for level in range(levels):
            table = weights[f"{prefix}layers.{level}.codebook.table"]
            nearest = (left[:, None] - table[None]).square().sum(-1).argmin(-1)
            assert torch.equal(nearest, codes[:, first + level])
            left = left - table[nearest]
