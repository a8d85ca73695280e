"""Feed-forward blocks: SwiGLU (talker, code predictor, codec decoder) and GELU MLP (codec encoder).

Both act on each position separately. Parameter names are those of the official files.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.linear import Linear


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj: nn.Module = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        gate, up = self.gate_and_up(x)
        y: Tensor = self.down_proj(functional.silu(gate) * up)
        return y

    def gate_and_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up projections of `x`, [..., inner] each."""
        return self.gate_proj(x), self.up_proj(x)


class GeluMLP(nn.Module):
    """`fc2(gelu(fc1(x)))` with the exact (erf) GELU, without biases."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner, bias=False)
        self.fc2 = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        y: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return y
