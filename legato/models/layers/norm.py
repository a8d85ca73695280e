"""RMSNorm. Owns its weight vector for the life of the model; knows neither time nor batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis: computed in float32, cast to the input's dtype, then multiplied.

    The order (cast before the weight) is that of the official models and matters in bfloat16. Float64 input is computed
    in float64.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape and dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        return functional.rms_norm(wide, (x.shape[-1],), eps=self.eps).to(x.dtype) * self.weight
