"""RMSNorm with the numerics of the official models: float32 statistics, cast to the input dtype, then the weight.

Statistics are over the last axis, so no row depends on another.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """RMS norm over the last axis: normalized in float32, cast to the input dtype, then multiplied by the weight.

    The cast comes before the weight, as in the official models; this matters in bfloat16. Float64 input is normalized
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
