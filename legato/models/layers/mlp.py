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
        self.down_proj: nn.Module = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        gate, up = self.gate_and_up(x)
        y: Tensor = self.down_proj(functional.silu(gate) * up)
        return y

    def gate_and_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both inner vectors of `x`, [..., inner] each."""
        return self.gate_proj(x), self.up_proj(x)


class JoinedSwiGLU(SwiGLU):
    """The same with gate and up as one product: `gate_up_proj` gives both side by side."""

    def __init__(self, gate_up_proj: nn.Module, down_proj: nn.Module) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj

    def gate_and_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both inner vectors of `x`, [..., inner] each."""
        both: Tensor = self.gate_up_proj(x)
        inner = both.shape[-1] // 2
        return both[..., :inner], both[..., inner:]


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
