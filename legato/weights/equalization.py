"""Equalization: move scales between layers so that weights lose less when they are quantized.

Trained language models have a few channels that are far larger than the others. If a norm makes such a channel and the
next linear compensates for it with small weights, these weights get only a few levels of the quantized range, and their
rounding errors are multiplied by the large channel. Multiplying a column of a linear by `s`, and dividing what produces
its input by `s`, does not change the function. All `s` are powers of two, so even bfloat16 weights do not change.

The scales are computed from the weights only: the second moments of activations are propagated through the layers as
for independent inputs. So they need no calibration data. Sums are in float64, so the machine makes no difference.
The idea is that of SmoothQuant and AWQ (docs/quantization.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from legato.config.model import PhoneTextConfig
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.decoder_layer import DecoderLayer, Layers
from legato.models.layers.norm import RMSNorm
from legato.models.talker.backbone import Talker
from legato.weights.module_tree import shallow_copy

EXPONENTS = (0.0, 0.25, 0.5, 0.75)
"""Candidates for the power with which a column grows with its share of the output."""
SAMPLED_ROWS = 512
"""Rows of a weight or an embedding whose statistics are computed, at least; all if there are fewer."""
MAX_EXPONENT = 12
"""Limit of the binary logarithm of a scale."""
TINY = 1e-30
_ROWS = 256
"""Rows of a weight that are converted at a time."""


@dataclass(slots=True)
class Equalization:
    """Powers of two for the parts of one module, float32. Parts that are not listed keep their weights.

    `columns`: linear -> factors of its columns [K]. `divisors`: norm -> divisors of its weight, linear -> divisors of
    its rows [N]. Only linears of the layers and heads are listed.
    """

    columns: dict[nn.Module, Tensor] = field(default_factory=dict)
    divisors: dict[nn.Module, Tensor] = field(default_factory=dict)

    def weight(self, linear: nn.Linear) -> Tensor:
        """The equalized weight [N, K], float32."""
        weight = linear.weight.detach().float()
        if linear in self.columns:
            weight = weight * self.columns[linear]
        if linear in self.divisors:
            weight = weight / self.divisors[linear][:, None]
        return weight

    def norm(self, norm: RMSNorm) -> RMSNorm | None:
        """A norm with the equalized weight; None if it does not change."""
        if norm not in self.divisors:
            return None
        changed = shallow_copy(norm)
        weight = norm.weight.detach() / self.divisors[norm].to(norm.weight)
        changed._parameters["weight"] = nn.Parameter(weight.to(norm.weight.dtype), requires_grad=False)
        return changed


def equalization(module: nn.Module) -> Equalization:
    """The scales of a talker or code predictor; none for other modules and for modules without weights (meta)."""
    scales = Equalization()
    if any(parameter.is_meta for parameter in module.parameters()):
        return scales
    with torch.no_grad():  # weights of a module that is trained require gradients
        if isinstance(module, Talker):
            _equalize_layers(module.model.layers, _talker_inputs(module), scales)
        elif isinstance(module, CodePredictor):
            residual = _equalize_layers(module.model.layers, _predictor_inputs(module), scales)
            _equalize_norm(module.model.norm, list(module.lm_head), residual, scales)
    return scales


def _talker_inputs(talker: Talker) -> Tensor:
    """Second moments of the talker's inputs [D]: the sum of embedded codes and embedded text."""
    codes = _mean_square(talker.model.codec_embedding.weight)
    if isinstance(talker.config.text, PhoneTextConfig):
        tables = [_mean_square(table.get_parameter("weight")) for table in talker.model.phone_embedding]
        return codes + torch.stack(tables).sum(0)
    return codes + _mean_square(talker.text_projection.linear_fc2.weight.T)


def _predictor_inputs(predictor: CodePredictor) -> Tensor:
    """Second moments of the inputs of the predictor's layers [D]."""
    tables = [_mean_square(table.get_parameter("weight")) for table in predictor.model.codec_embedding]
    moments = torch.stack(tables).mean(0)
    projection = predictor.small_to_mtp_projection
    return _moments_behind(projection, moments) if isinstance(projection, nn.Linear) else moments


def _equalize_layers(layers: Layers, residual: Tensor, scales: Equalization) -> Tensor:
    """Add the scales of all layers; returns the second moments of the residual stream [D] behind them."""
    for layer in layers:
        assert isinstance(layer, DecoderLayer)
        residual = _equalize_mlp(layer, _equalize_attention(layer, residual, scales), scales)
    return residual


def _equalize_norm(norm: RMSNorm, linears: Sequence[nn.Module], residual: Tensor, scales: Equalization) -> Tensor:
    """Add the scales between a norm and the linears that read it; returns the second moments behind the norm [D]."""
    normed = residual / residual.mean().clamp(min=TINY) * norm.weight.double().square()
    factors = column_scales([linear.get_parameter("weight") for linear in linears], normed)
    scales.columns |= dict.fromkeys(linears, factors)
    scales.divisors[norm] = factors
    return normed


def _equalize_attention(layer: DecoderLayer, residual: Tensor, scales: Equalization) -> Tensor:
    """Add the scales of the attention block; returns the second moments of the residual stream behind it."""
    attention = layer.self_attn
    queries, keys, values = attention.q_proj, attention.k_proj, attention.v_proj
    normed = _equalize_norm(layer.input_layernorm, (queries, keys, values), residual, scales)
    moments = _moments_behind(values, normed)
    output, group = attention.o_proj, attention.heads // attention.kv_heads
    assert isinstance(output, nn.Linear)
    # The columns of `o_proj` that read one value, one for each query of its key head, on top of each other.
    by_value = output.weight.view(-1, attention.kv_heads, group, attention.head_dim).transpose(1, 2)
    factors = column_scales([by_value.reshape(-1, len(moments))], moments)
    scales.divisors[values] = factors
    scales.columns[output] = _for_queries(factors, group, attention.head_dim)
    return residual + _moments_behind(output, _for_queries(moments, group, attention.head_dim))


def _equalize_mlp(layer: DecoderLayer, residual: Tensor, scales: Equalization) -> Tensor:
    """Add the scales of the feed-forward block; returns the second moments of the residual stream behind it."""
    mlp = layer.mlp
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    assert isinstance(down, nn.Linear)
    normed = _equalize_norm(layer.post_attention_layernorm, (gate, up), residual, scales)
    # silu(x)^2 is x^2 / 4 for small x, and x^2 / 2 on average for large x.
    moments = _moments_behind(up, normed) * _moments_behind(gate, normed) / 3
    factors = column_scales([down.weight], moments)
    scales.divisors[up] = factors
    scales.columns[down] = factors
    return residual + _moments_behind(down, moments)


def column_scales(weights: Sequence[Tensor], moments: Tensor) -> Tensor:
    """Powers of two for the columns [K] of `weights` (each [N, K]), whose inputs have the second moments `moments` [K].

    Columns first become equally large. A column with a large share of the output then grows by a power of this share,
    if that makes the error of the output smaller: the rounding error of a weight is proportional to the largest weight
    of its output, and is multiplied by its input.
    """
    rows = torch.cat([_sampled(weight).double() for weight in weights])
    relative = rows / rows.square().mean(1, keepdim=True).sqrt().clamp(min=TINY)
    size = relative.square().mean(0).sqrt().clamp(min=TINY)
    share = (size * moments.sqrt()).clamp(min=TINY)
    growth = torch.log2(share / share.median()).clamp(min=0)
    candidates = []
    for exponent in EXPONENTS:
        logarithm = (exponent * growth + torch.log2(size.median() / size)).round().clamp(-MAX_EXPONENT, MAX_EXPONENT)
        scales = torch.exp2(logarithm)
        steps = (relative.abs() * scales).amax(1)
        error = steps.square().mean() * (moments / scales.square()).sum()
        candidates.append((float(error), scales))
    return min(candidates, key=lambda candidate: candidate[0])[1].float()


def _moments_behind(linear: nn.Linear, moments: Tensor) -> Tensor:
    """Second moments of the outputs [N] of a linear whose independent inputs have `moments` [K]."""
    return torch.cat([part.double().square() @ moments for part in torch.split(linear.weight, _ROWS)])


def _mean_square(table: Tensor) -> Tensor:
    """Of each column [D] of an embedding [V, D]."""
    return _sampled(table).double().square().mean(0)


def _sampled(rows: Tensor) -> Tensor:
    """Every n-th row."""
    return rows[:: max(1, len(rows) // SAMPLED_ROWS)]


def _for_queries(values: Tensor, group: int, head_dim: int) -> Tensor:
    """Numbers of all values [H_kv d], repeated for the `group` queries of each key head: [H d]."""
    return values.view(-1, 1, head_dim).expand(-1, group, -1).flatten()
