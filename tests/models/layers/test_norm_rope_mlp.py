"""RMSNorm, RoPE and MLPs against their formulas, and the order of casts in bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from legato.models.layers.mlp import GeluMLP, SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import apply_rope, inverse_frequencies, rope_tables


def test_rms_norm_formula() -> None:
    norm = RMSNorm(3, 1e-5)
    norm.weight.data.copy_(torch.tensor([1.0, 2.0, -1.0]))
    x = torch.tensor([[3.0, -4.0, 1.0]])
    root = math.sqrt(26.0 / 3.0 + 1e-5)
    assert norm(x)[0].tolist() == pytest.approx([3.0 / root, -8.0 / root, -1.0 / root], rel=1e-6)


def test_rms_norm_is_float32_and_cast_before_the_weight() -> None:
    torch.manual_seed(0)
    norm = RMSNorm(64, 1e-6).to(torch.bfloat16)
    norm.weight.data.copy_(1 + 0.3 * torch.randn(64))
    x = (100 * torch.randn(5, 64)).to(torch.bfloat16)
    wide = x.float()
    unit = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(norm(x), unit * norm.weight)
    cast_last = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight.float()).to(torch.bfloat16)
    assert not torch.equal(norm(x), cast_last)


def test_rope_keeps_norms_and_depends_on_distance_only() -> None:
    torch.manual_seed(1)
    frequencies = inverse_frequencies(8, 1e4)
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)

    def score(at: int, of: int) -> float:
        rotated = apply_rope(query, rope_tables(torch.tensor([[at]]), frequencies, query.dtype))
        other = apply_rope(key, rope_tables(torch.tensor([[of]]), frequencies, key.dtype))
        assert rotated.norm() == pytest.approx(float(query.norm()))
        return float((rotated * other).sum())

    assert score(7, 4) == pytest.approx(score(1007, 1004), abs=1e-9)
    assert abs(score(7, 4) - score(7, 5)) > 1e-3


def test_rope_uses_the_rotate_half_layout() -> None:
    rope = rope_tables(torch.tensor([[1]]), torch.tensor([math.pi / 2, 0.0]), torch.float64)
    rotated = apply_rope(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).view(1, 1, 1, 4), rope)
    assert rotated.flatten().tolist() == pytest.approx([-3.0, 2.0, 1.0, 4.0], abs=1e-6)


def test_rope_angles_are_float32() -> None:
    """bfloat16 cannot represent position 1001, so angles must not be computed in it."""
    rope = rope_tables(torch.tensor([[1001]]), inverse_frequencies(4, 1e4), torch.bfloat16)
    assert rope.cos.dtype == torch.bfloat16
    assert float(rope.cos[0, 0, 0, 0]) == pytest.approx(math.cos(1001.0), abs=4e-3)


def test_feed_forward_formulas() -> None:
    torch.manual_seed(2)
    x = torch.randn(2, 3, 4)
    swiglu, plain = SwiGLU(4, 6), GeluMLP(4, 6)
    gate, up = x @ swiglu.gate_proj.weight.T, x @ swiglu.up_proj.weight.T
    assert torch.allclose(
        swiglu(x), (gate * gate.sigmoid() * up) @ swiglu.down_proj.get_parameter("weight").T, atol=1e-6
    )
    inner = x @ plain.fc1.weight.T
    exact = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
    assert torch.allclose(plain(x), exact @ plain.fc2.weight.T, atol=1e-6)
    tanh_form = functional.gelu(inner, approximate="tanh") @ plain.fc2.weight.T
    assert not torch.allclose(plain(x), tanh_form, atol=1e-6)
