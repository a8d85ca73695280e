"""The linear layer of talker and code predictor.

Its weights may be stored in a narrower dtype than the activations.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """`x @ weight.T + bias` in the dtype of `x`.

    A bfloat16 checkpoint that is computed in float32 keeps its weights as mapped views of the file. Widening them in
    each call is exact and needs no second copy; backends use faster forms of the same weights.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in_features] -> [..., out_features]."""
        return functional.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
