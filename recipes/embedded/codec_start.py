"""Initialize the codec decoder: from the voice in this repository, or with a closed-form front.

The front (quantizer, transformer, first upsampling stages) is set so that it reproduces the mel spectrogram. This is
possible because codes map to stacked log-mel frames by a linear function, which the tables contain. At 100 Hz each
position then carries the mel frame of its hop and, within its codec frame, of the next two hops. With random
initialization this function is still blurred after hours of training, and consonants with it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from codec_net import CodecDecoder, ConvNeXt
from codec_tables import MEL_BANDS, MELS_PER_FRAME, Tables
from safetensors.torch import load_file
from torch import Tensor, nn

from legato.weights import name_mapping as names

SCALE = 2.0
"""Log-mel values are divided by this (about one standard deviation)."""
HALF_KEPT, REST_KEPT, QUARTER_KEPT = 150, 100, 120
"""Number of components for a half frame (four hops), for the following half, and for a quarter (two hops)."""
ANCHOR = 128.0
"""Value of a constant channel that dominates the RMS, so that RMSNorm is approximately linear."""
BRANCH_GAIN = 0.3


@torch.no_grad()
def init_from_tables(net: CodecDecoder, tables: Tables, codes: Tensor) -> None:
    """Set all parameters before the first convolution at 100 Hz. `codes` [T, 8]: typical codes."""
    unit = float(tables.codebooks[0].std())
    band_mean = tables.mean.view(MELS_PER_FRAME, MEL_BANDS).mean(0)
    to_mel = unit * tables.basis / SCALE
    offset = (tables.mean.view(MELS_PER_FRAME, MEL_BANDS) - band_mean).reshape(-1) / SCALE
    hops = (tables.decode(codes).view(-1, MELS_PER_FRAME, MEL_BANDS) - band_mean) / SCALE
    halves = _directions(hops.reshape(-1, 4 * MEL_BANDS), HALF_KEPT)
    quarters = _directions(hops.reshape(-1, 2 * MEL_BANDS), QUARTER_KEPT)
    _set_quantizer(net, tables.codebooks / unit)
    _set_transformer(net, tables.codebooks.shape[-1])
    for upsample, convnext in net.upsample:
        _init_identity(convnext)
        upsample.conv.weight.zero_()
        upsample.conv.bias.zero_()
    _set_halves(net.upsample[0][0].conv.weight, to_mel, offset, halves)
    _set_quarters(net.upsample[1][0].conv.weight, halves, quarters)
    _set_hops(net.upsample[2][0].conv.weight, quarters)
    for upsample, _ in list(net.upsample)[3:]:
        upsample.conv.weight[:, :, 0] = torch.eye(upsample.conv.weight.shape[0])


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a `speech_tokenizer` folder as float32, with the names of the training net."""
    stored = load_file(str(folder / names.MAIN_FILE))
    return {name.removeprefix(names.DECODER): value.float() for name, value in stored.items()}


def front_parameters(net: CodecDecoder) -> list[nn.Parameter]:
    """Parameters that start from the closed form and are trained with a lower learning rate."""
    parts = [net.quantizer, net.pre_conv, net.pre_transformer, *(upsample for upsample, _ in net.upsample)]
    return [parameter for part in parts for parameter in part.parameters()]


def _directions(rows: Tensor, kept: int) -> Tensor:
    """Principal directions of the rows: [N, D] -> [D, kept], orthonormal, strongest first."""
    _, directions = torch.linalg.eigh(rows.T @ rows)
    return directions.flip(1)[:, :kept]


def _set_quantizer(net: CodecDecoder, codebooks: Tensor) -> None:
    level = 0
    for group in (net.quantizer.rvq_first, net.quantizer.rvq_rest):
        for layer in group.vq["layers"]:
            layer["_codebook"].embedding_sum.copy_(codebooks[level])
            level += 1
        group.output_proj.weight.copy_(torch.eye(*group.output_proj.weight.shape[:2])[..., None])
    net.pre_conv.conv.weight.zero_()
    net.pre_conv.conv.bias.zero_()
    width = codebooks.shape[-1]
    net.pre_conv.conv.weight[:width, :width, -1] = torch.eye(width)


def _set_transformer(net: CodecDecoder, width: int) -> None:
    """Make the transformer the identity. Channel `width` is the constant (anchor), equal to one at the output."""
    transformer = net.pre_transformer
    gain = ANCHOR / transformer.norm.weight.shape[0] ** 0.5
    for projection, anchor in ((transformer.input_proj, 0.0), (transformer.output_proj, 1 / ANCHOR)):
        projection.weight.zero_()
        projection.bias.zero_()
        projection.weight[:width, :width] = torch.eye(width)
        projection.weight[width, width] = anchor
    transformer.input_proj.bias[width] = ANCHOR
    transformer.norm.weight.fill_(gain)
    for layer in transformer.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.fill_(gain)
            norm.weight[width] = 1 / transformer.norm.weight.shape[0] ** 0.5
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _init_identity(block: ConvNeXt) -> None:
    """Set the block to the identity."""
    block.pwconv2.weight.zero_()
    block.pwconv2.bias.zero_()
    block.gamma.fill_(BRANCH_GAIN)


def _set_halves(weight: Tensor, to_mel: Tensor, offset: Tensor, halves: Tensor) -> None:
    """12.5 -> 25 Hz, weight [256, 256, 2]. Output channels: this half, the next half, constant 1, index of the half."""
    width, size = to_mel.shape[1], halves.shape[0]
    for place in range(2):
        rows = slice(place * size, (place + 1) * size)
        weight[:width, :HALF_KEPT, place] = to_mel[rows].T @ halves
        weight[width, :HALF_KEPT, place] = offset[rows] @ halves
    rest = slice(HALF_KEPT, HALF_KEPT + REST_KEPT)
    weight[:width, rest, 0] = to_mel[size:].T @ halves[:, :REST_KEPT]
    weight[width, rest, 0] = offset[size:] @ halves[:, :REST_KEPT]
    one = HALF_KEPT + REST_KEPT
    weight[width, one] = 1.0
    weight[width, one + 1, 1] = 1.0


def _set_quarters(weight: Tensor, halves: Tensor, quarters: Tensor) -> None:
    """25 -> 50 Hz. Output channels: this quarter, the next quarter, constant 1, indices of half and quarter."""
    one_in, one = HALF_KEPT + REST_KEPT, 2 * QUARTER_KEPT
    size = quarters.shape[0]
    first, second = halves[:size].T @ quarters, halves[size:].T @ quarters
    here, after = slice(0, QUARTER_KEPT), slice(QUARTER_KEPT, 2 * QUARTER_KEPT)
    weight[:HALF_KEPT, here, 0] = first
    weight[:HALF_KEPT, here, 1] = second
    weight[:HALF_KEPT, after, 0] = second
    weight[HALF_KEPT:one_in, after, 1] = first[:REST_KEPT]
    weight[one_in, one] = 1.0
    weight[one_in + 1, one + 1] = 1.0
    weight[one_in, one + 2, 1] = 1.0


def _set_hops(weight: Tensor, quarters: Tensor) -> None:
    """50 -> 100 Hz. Output channels: mel frames of this and the next two hops, constant 1, indices of half to hop."""
    one_in, one, bands = 2 * QUARTER_KEPT, 3 * MEL_BANDS, MEL_BANDS
    first, second = quarters[:bands].T, quarters[bands:].T
    here, after = slice(0, QUARTER_KEPT), slice(QUARTER_KEPT, one_in)
    weight[here, :bands, 0] = first
    weight[here, :bands, 1] = second
    weight[here, bands : 2 * bands, 0] = second
    weight[after, bands : 2 * bands, 1] = first
    weight[after, 2 * bands : one, 0] = first
    weight[after, 2 * bands : one, 1] = second
    for flag in range(3):
        weight[one_in + flag, one + flag] = 1.0
    weight[one_in, one + 3, 1] = 1.0
