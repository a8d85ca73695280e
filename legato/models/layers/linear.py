"""The linear layer of all transformers here, with weights in the same dtype as the activations or a narrower one.

The reference implementation converts them in each call.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """`x @ weight.T + bias` in the dtype of `x`.

    If a bfloat16 checkpoint is computed in float32, its weights stay memory-mapped in bfloat16. Converting them in each
    call is exact and avoids a second copy. Backends use faster forms of the same weights.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in_features] -> [..., out_features]."""
        return functional.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
