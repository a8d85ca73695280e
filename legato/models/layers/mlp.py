"""Feed-forward blocks. Own their weights; know neither time nor batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, no biases; parameter names as in the official files."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class GeluMLP(nn.Module):
    """`fc2(gelu(fc1(x)))` with the exact (erf) GELU, no biases; parameter names as in the official files."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner, bias=False)
        self.fc2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        y: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return y
