"""Attention equals torch's; masked keys have no effect; RoPE tables are float32 in a bfloat16 layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from legato.models.layers.attention import attention
from legato.models.layers.decoder_layer import DecoderLayer, UncachedKV, causal_visibility, run_layers
from legato.models.layers.rope import inverse_frequencies, rope_tables
from tests.models.tiny_talker import scaled, stack


def heads(H: int, P: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(2, H, P, 16, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_equals_torch_with_repeated_keys() -> None:
    queries, keys, values = heads(4, 7), heads(2, 7, seed=1), heads(2, 7, seed=2)
    visible = torch.ones(1, 7, 7, dtype=torch.bool).tril()
    ours = attention(queries, keys, values, visible)

    def library(repeat: Tensor, other: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(queries, repeat, other, is_causal=True)

    theirs = library(keys.repeat_interleave(2, dim=1), values.repeat_interleave(2, dim=1))
    assert (ours - theirs).abs().max() < 1e-12
    interleaved = library(keys.repeat(1, 2, 1, 1), values.repeat(1, 2, 1, 1))
    assert (ours - interleaved).abs().max() > 1e-2


def test_no_mask_equals_a_mask_of_ones() -> None:
    queries, keys, values = heads(4, 1), heads(2, 7, seed=1), heads(2, 7, seed=2)
    every = torch.ones(2, 1, 7, dtype=torch.bool)
    assert (attention(queries, keys, values, None) - attention(queries, keys, values, every)).abs().max() < 1e-12


def test_nan_in_masked_keys_has_no_effect() -> None:
    queries, keys, values = heads(4, 1), heads(2, 7, seed=1), heads(2, 7, seed=2)
    visible = torch.tensor([[[True] * 5 + [False] * 2]] * 2)
    clean = attention(queries, keys[:, :, :5], values[:, :, :5], None)
    keys[:, :, 5:] = float("nan")
    assert (attention(queries, keys, values, visible) - clean).abs().max() < 1e-12
    assert attention(queries, keys, values, None).isnan().all()


def test_bfloat16_attention_is_close_to_float64() -> None:
    queries, keys = heads(4, 1, torch.bfloat16), heads(2, 512, torch.bfloat16, 1)
    values = heads(2, 512, torch.bfloat16, 2)
    exact = attention(queries.double(), keys.double(), values.double(), None)
    ours = attention(queries, keys, values, None)
    assert ours.dtype == torch.bfloat16
    assert (ours.double() - exact).abs().max() < 4e-3


def test_rope_is_float32_in_a_bfloat16_layer() -> None:
    """Positions 4000 and 4001 are equal in bfloat16, so angles computed in it would be equal, too."""
    torch.manual_seed(0)
    layer = scaled(DecoderLayer(stack())).to(torch.bfloat16)
    x = torch.randn(1, 6, 32).to(torch.bfloat16)
    visible = causal_visibility(torch.ones(1, 6, dtype=torch.bool))

    def run(first: int, angles: torch.dtype) -> Tensor:
        positions = (first + torch.arange(6))[None].to(angles)
        rope = rope_tables(positions, inverse_frequencies(16, 1e6), torch.float32)
        return run_layers([layer], x, rope=rope, kv=UncachedKV(visible)).float()

    with torch.inference_mode():
        near, far, control = run(0, torch.int64), run(4000, torch.int64), run(4000, torch.bfloat16)
    shift = (far - near).abs().mean()
    assert shift < 0.02, "only distances may matter"
    assert (control - near).abs().mean() > 4 * shift


def test_causal_visibility_masks_future_and_padding() -> None:
    square = causal_visibility(torch.tensor([[False, True, True]]))[0]
    assert square.tolist() == [[True, False, False], [False, True, False], [False, True, True]]
