"""Every layer of the codec decoder on its own: windows against one call, on what the whole decode feeds that layer.

Owns one layer's input and output at a time, so an official decoder needs little more memory than to decode. A layer's
state is a tuple of tensors here, whatever its kind. Knows no engine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import SplitQuantizer
from legato.models.codec.transformer import FrameTransformerLayer
from legato.models.codec.upsample import ConvNeXtBlock, DecoderBlock, ResidualUnit, UpsampleStage
from legato.models.layers.attention import KeyValues, window_mask
from legato.models.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalDepthwiseConv1d,
    CausalLayer,
    HistoryWalk,
    history_shapes,
)
from legato.models.layers.rope import inverse_frequencies, rotation
from legato.verify.compare import Comparison, compare, named, worst
from legato.verify.lines import CheckLine, Kind, Where
from legato.verify.partitions import ESSENTIAL, partitions
from legato.verify.subject import Subject, dtype_name
from legato.verify.tolerance import SHARE, Tolerance, of_half_precision, of_scale

GROUP = "codec layers"
CONTROL_WINDOW = 3
CONTROL_FRAMES = 9
AXES = ("row", "position", "channel")
LayerState = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class CodecLayer:
    """One layer: its name in the checkpoint and its module. Positions are axis 1 of its input and of its output."""

    name: str
    module: nn.Module
    theta: float = 0.0

    @property
    def stateful(self) -> bool:
        """True if its output depends on earlier windows."""
        return isinstance(self.module, FrameTransformerLayer) or bool(history_shapes(self.module))

    def fresh(self, like: Tensor) -> LayerState:
        """Its state before the first window of `like`'s rows."""
        rows = like.shape[0]
        if isinstance(self.module, FrameTransformerLayer):
            past = like.new_zeros(rows, *self.module.self_attn.history_shape)
            return past, past, torch.zeros(rows, dtype=torch.int64, device=like.device)
        return tuple(like.new_zeros(rows, *shape) for shape in history_shapes(self.module))

    def step(self, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """One window."""
        module = self.module
        if isinstance(module, FrameTransformerLayer):
            return self._attend(module, x, state)
        if isinstance(module, CausalLayer):
            walk = HistoryWalk(state)
            return walk.run(module, x), walk.done()
        if isinstance(module, ConvNeXtBlock | ResidualUnit):
            walk = HistoryWalk(state)
            return module.forward(x, walk, None), walk.done()
        y: Tensor = module(x)
        return y, state

    def _attend(self, module: FrameTransformerLayer, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        keys, values, positions = state
        count, attention = x.shape[1], module.self_attn
        absolute = positions[:, None] + torch.arange(count, device=x.device)
        by = rotation(absolute, inverse_frequencies(attention.head_dim, self.theta, x.device), x.dtype)
        mask = window_mask(positions, count, attention.window)
        y, after = module.forward(x, KeyValues(keys, values), by, mask, None)
        return y, (after.keys, after.values, positions + count)


def codec_layers(decoder: CodecDecoder) -> list[CodecLayer]:
    """The layers in the order in which the decoder runs them, under their names in the checkpoint."""
    transformer = decoder.pre_transformer
    layers = [
        CodecLayer("quantizer", decoder.quantizer),
        CodecLayer("pre_conv", decoder.pre_conv),
        CodecLayer("pre_transformer.input_proj", transformer.input_proj),
    ]
    for at, each in enumerate(transformer.layers):
        layers.append(CodecLayer(f"pre_transformer.layers.{at}", each, transformer.theta))
    layers.append(CodecLayer("pre_transformer.norm", transformer.norm))
    layers.append(CodecLayer("pre_transformer.output_proj", transformer.output_proj))
    for at, stage in enumerate(decoder.upsample):
        assert isinstance(stage, UpsampleStage)
        layers += [CodecLayer(f"upsample.{at}.{part}", each) for part, each in enumerate(stage)]
    for at, part in enumerate(decoder.decoder):
        if isinstance(part, DecoderBlock):
            layers += [CodecLayer(f"decoder.{at}.block.{k}", each) for k, each in enumerate(part.block)]
        else:
            layers.append(CodecLayer(f"decoder.{at}", part))
    return layers


def check_codec_layers(subject: Subject) -> Iterator[CheckLine]:
    """Each layer on the activations of the whole decode; then each that has a history with that history dropped."""
    frames = subject.depth.layer_frames
    cuts = partitions(frames, subject.seed)
    cut = {name: cuts[name] for name in ESSENTIAL}
    x = subject.codes(frames, salt=1)
    for layer in codec_layers(subject.model.decoder):
        whole, _ = layer.step(x, fresh_of(layer, x, subject.codec_dtype))
        tolerance = layer_tolerance(layer, x, whole)
        setting = f"{layer.name}, {frames} frames"
        where = subject.at_codec(kind_of(layer.module))
        yield CheckLine(
            GROUP, "layer in windows = in one call", setting, where, in_all(layer, x, whole, cut, tolerance), tolerance
        )
        if layer.stateful:
            yield dropped_history(layer, x, frames, str(subject.device))
        x = whole


def fresh_of(layer: CodecLayer, x: Tensor, dtype: torch.dtype) -> LayerState:
    """The layer's fresh state in the codec's dtype (codes, the quantizer's input, are integers)."""
    return layer.fresh(x if x.is_floating_point() else x.to(dtype))


def in_all(layer: CodecLayer, x: Tensor, whole: Tensor, cut: dict[str, list[int]], tolerance: Tolerance) -> Comparison:
    """The worst of all partitions."""
    found = []
    for name, sizes in cut.items():
        got = in_windows(layer, x, sizes)
        found.append(named(compare(got, whole, AXES, stage=layer.name, limit=tolerance.limit), name))
    return worst(found)


def in_windows(layer: CodecLayer, x: Tensor, sizes: Sequence[int], *, keep: bool = True) -> Tensor:
    """The layer's outputs for windows of `sizes` frames, joined; every window starts afresh without `keep`."""
    per_frame = x.shape[1] // sum(sizes)
    state = fresh_of(layer, x, torch.float32 if not x.is_floating_point() else x.dtype)
    parts: list[Tensor] = []
    for window in torch.split(x, [size * per_frame for size in sizes], dim=1):
        y, after = layer.step(window, state)
        state = after if keep else state
        parts.append(y)
    return torch.cat(parts, dim=1)


def layer_tolerance(layer: CodecLayer, x: Tensor, whole: Tensor) -> Tolerance:
    """By dtype and the size of the layer's output; half precision is judged by what it costs this layer."""
    if whole.dtype in SHARE:
        return of_scale(whole.dtype, float(whole.abs().max()))
    exact = wide_copy(layer, torch.float32)
    wide = x.float() if x.is_floating_point() else x
    oracle, _ = exact.step(wide, fresh_of(exact, wide, torch.float32))
    return of_half_precision(float((whole.float() - oracle).abs().max()), whole.dtype)


def dropped_history(layer: CodecLayer, x: Tensor, frames: int, device: str) -> CheckLine:
    """The same check on a few frames, every window started afresh: in float64, where the smallest difference shows."""
    exact = wide_copy(layer, torch.float64)
    few = x.narrow(1, 0, x.shape[1] // frames * CONTROL_FRAMES).double()
    whole, _ = exact.step(few, exact.fresh(few))
    sizes = [CONTROL_WINDOW] * (CONTROL_FRAMES // CONTROL_WINDOW)
    tolerance = of_scale(torch.float64, float(whole.abs().max()))
    got = in_windows(exact, few, sizes, keep=False)
    comparison = compare(got, whole, AXES, stage=layer.name, limit=tolerance.limit)
    where = Where(device, dtype_name(torch.float64), 1, kind_of(layer.module))
    setting = f"{layer.name}, windows of {CONTROL_WINDOW}"
    return CheckLine(GROUP, "layer's history dropped", setting, where, comparison, tolerance, Kind.CONTROL)


def wide_copy(layer: CodecLayer, dtype: torch.dtype) -> CodecLayer:
    """The layer with a copy of its weights in `dtype`."""
    module = copy.deepcopy(layer.module).to(dtype=dtype)
    return CodecLayer(layer.name, module, layer.theta)


def kind_of(module: nn.Module) -> str:
    """What sort of layer it is, for the report."""
    if isinstance(module, FrameTransformerLayer):
        return f"sliding window of {module.self_attn.window}"
    kinds = {
        SplitQuantizer: "table look-up",
        CausalConv1d: "convolution",
        CausalConvTranspose1d: "transposed convolution",
        CausalDepthwiseConv1d: "depthwise convolution",
        ConvNeXtBlock: "convolution block",
        ResidualUnit: "dilated convolution block",
        nn.Identity: "a residual unit that adds nothing",
    }
    return next((name for kind, name in kinds.items() if isinstance(module, kind)), "each position by itself")
