"""Each layer of the codec decoder: windows against one call, on the activations of a whole decode.

Also the worked example of docs/streaming-convolution.md. Holds the input and output of one layer at a time, so a
full-size decoder needs little more memory than for decoding. The state of any layer is a tuple of tensors here.
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
    ConvHistories,
    history_shapes,
)
from legato.models.layers.rope import inverse_frequencies, rope_tables
from legato.verify.compare import (
    INTEGERS,
    RELATIVE_LIMIT,
    Comparison,
    Tolerance,
    compare,
    named,
    of_half_precision,
    of_scale,
    worst,
)
from legato.verify.results import CheckLine, ExecutionInfo, Kind
from legato.verify.target import ESSENTIAL, Target, dtype_name, partitions

GROUP = "codec layers"
CONVOLUTION_GROUP = "worked convolution example"
EXAMPLE_LENGTH = 12
EXAMPLE_KERNEL = (1, 2, 3)
EXAMPLE_WINDOWS = {
    "windows of 3, 4, 5": (3, 4, 5),
    "windows of 1": (1,) * EXAMPLE_LENGTH,
    "one window": (EXAMPLE_LENGTH,),
}
CONTROL_WINDOW = 3
CONTROL_FRAMES = 9
AXES = ("row", "position", "channel")
LayerState = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class CodecLayer:
    """A layer and its name in the checkpoint. Axis 1 of its input and output is time. `theta`: RoPE base."""

    name: str
    module: nn.Module
    theta: float = 0.0

    @property
    def stateful(self) -> bool:
        """True if the output depends on earlier windows."""
        return isinstance(self.module, FrameTransformerLayer) or bool(history_shapes(self.module))

    def initial_state(self, like: Tensor) -> LayerState:
        """The initial state, one row for each row of `like`."""
        rows = like.shape[0]
        if isinstance(self.module, FrameTransformerLayer):
            past = like.new_zeros(rows, *self.module.self_attn.history_shape)
            return past, past, torch.zeros(rows, dtype=torch.int64, device=like.device)
        return tuple(like.new_zeros(rows, *shape) for shape in history_shapes(self.module))

    def step(self, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Compute one window: output and next state."""
        module = self.module
        if isinstance(module, FrameTransformerLayer):
            return self._attend(module, x, state)
        if isinstance(module, CausalLayer):
            histories = ConvHistories(state)
            return histories.run(module, x), histories.updated()
        if isinstance(module, ConvNeXtBlock | ResidualUnit):
            histories = ConvHistories(state)
            return module.forward(x, histories, None), histories.updated()
        y: Tensor = module(x)
        return y, state

    def _attend(self, module: FrameTransformerLayer, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        keys, values, positions = state
        count, attention = x.shape[1], module.self_attn
        absolute = positions[:, None] + torch.arange(count, device=x.device)
        rope = rope_tables(absolute, inverse_frequencies(attention.head_dim, self.theta, x.device), x.dtype)
        mask = window_mask(positions, count, attention.window)
        y, after = module.forward(x, KeyValues(keys, values), rope, mask, None)
        return y, (after.keys, after.values, positions + count)


def codec_layers(decoder: CodecDecoder) -> list[CodecLayer]:
    """All layers in execution order, named as in the checkpoint."""
    transformer = decoder.pre_transformer
    layers = [
        CodecLayer("quantizer", decoder.quantizer),
        CodecLayer("pre_conv", decoder.pre_conv),
        CodecLayer("pre_transformer.input_proj", transformer.input_proj),
    ]
    for index, each in enumerate(transformer.layers):
        layers.append(CodecLayer(f"pre_transformer.layers.{index}", each, transformer.theta))
    layers.append(CodecLayer("pre_transformer.norm", transformer.norm))
    layers.append(CodecLayer("pre_transformer.output_proj", transformer.output_proj))
    for index, stage in enumerate(decoder.upsample):
        assert isinstance(stage, UpsampleStage)
        layers += [CodecLayer(f"upsample.{index}.{part}", each) for part, each in enumerate(stage)]
    for index, part in enumerate(decoder.decoder):
        if isinstance(part, DecoderBlock):
            layers += [CodecLayer(f"decoder.{index}.block.{k}", each) for k, each in enumerate(part.block)]
        else:
            layers.append(CodecLayer(f"decoder.{index}", part))
    return layers


def check_codec_layers(target: Target) -> Iterator[CheckLine]:
    """Each layer in windows; for each layer with a history, a control that drops it."""
    frames = target.depth.layer_frames
    windows = {name: sizes for name, sizes in partitions(frames, target.seed).items() if name in ESSENTIAL}
    x = target.random_codes(frames, salt=1)
    reference_layers = codec_layers(target.model.decoder)
    for layer, reference in zip(codec_layers(target.backend.decoder), reference_layers, strict=True):
        whole, _ = layer.step(x, initial_state(layer, x, target.codec_dtype))
        tolerance = layer_tolerance(reference, x, whole)
        yield CheckLine(
            group=GROUP,
            claim="layer in windows = in one call",
            setting=f"{layer.name}, {frames} frames",
            execution=target.codec_execution(kind_of(layer.module)),
            comparison=compare_partitions(layer, x, whole, windows, tolerance),
            tolerance=tolerance,
        )
        if layer.stateful:
            yield dropped_history(reference, x, frames, str(target.device))
        x = whole


def initial_state(layer: CodecLayer, x: Tensor, dtype: torch.dtype) -> LayerState:
    """The initial state. The quantizer's input is integer codes, so its state takes the codec's `dtype`."""
    return layer.initial_state(x if x.is_floating_point() else x.to(dtype))


def compare_partitions(
    layer: CodecLayer, x: Tensor, whole: Tensor, windows: dict[str, list[int]], tolerance: Tolerance
) -> Comparison:
    """The worst comparison over all partitions."""
    parts = []
    for name, sizes in windows.items():
        got = in_windows(layer, x, sizes)
        parts.append(named(compare(got, whole, AXES, stage=layer.name, limit=tolerance.limit), name))
    return worst(parts)


def in_windows(layer: CodecLayer, x: Tensor, sizes: Sequence[int], *, keep_history: bool = True) -> Tensor:
    """Concatenated outputs of windows of `sizes` frames; without `keep_history` every window has the initial state."""
    per_frame = x.shape[1] // sum(sizes)
    state = initial_state(layer, x, torch.float32 if not x.is_floating_point() else x.dtype)
    parts: list[Tensor] = []
    for window in torch.split(x, [size * per_frame for size in sizes], dim=1):
        y, after = layer.step(window, state)
        state = after if keep_history else state
        parts.append(y)
    return torch.cat(parts, dim=1)


def layer_tolerance(layer: CodecLayer, x: Tensor, whole: Tensor) -> Tolerance:
    """A fraction of the layer's largest output. In half precision: relative to the layer's error against float32."""
    if whole.dtype in RELATIVE_LIMIT:
        return of_scale(whole.dtype, float(whole.abs().max()))
    reference = wide_copy(layer, torch.float32)
    wide = x.float() if x.is_floating_point() else x
    oracle, _ = reference.step(wide, initial_state(reference, wide, torch.float32))
    return of_half_precision(float((whole.float() - oracle).abs().max()), whole.dtype)


def dropped_history(layer: CodecLayer, x: Tensor, frames: int, device: str) -> CheckLine:
    """Control: every window starts from the initial state.

    A few frames in float64, in which the smallest difference is visible.
    """
    wide = wide_copy(layer, torch.float64)
    control_input = x.narrow(1, 0, x.shape[1] // frames * CONTROL_FRAMES).double()
    whole, _ = wide.step(control_input, wide.initial_state(control_input))
    sizes = [CONTROL_WINDOW] * (CONTROL_FRAMES // CONTROL_WINDOW)
    tolerance = of_scale(torch.float64, float(whole.abs().max()))
    got = in_windows(wide, control_input, sizes, keep_history=False)
    return CheckLine(
        group=GROUP,
        claim="layer history dropped",
        setting=f"{layer.name}, windows of {CONTROL_WINDOW}",
        execution=ExecutionInfo(device, dtype_name(torch.float64), 1, kind_of(layer.module)),
        comparison=compare(got, whole, AXES, stage=layer.name, limit=tolerance.limit),
        tolerance=tolerance,
        kind=Kind.CONTROL,
    )


def wide_copy(layer: CodecLayer, dtype: torch.dtype) -> CodecLayer:
    """A copy of the layer in `dtype`."""
    module = copy.deepcopy(layer.module).to(dtype=dtype)
    return CodecLayer(layer.name, module, layer.theta)


def kind_of(module: nn.Module) -> str:
    """The kind of layer, for the report."""
    if isinstance(module, FrameTransformerLayer):
        return f"sliding window of {module.self_attn.window}"
    kinds = {
        SplitQuantizer: "codebook lookup",
        CausalConv1d: "convolution",
        CausalConvTranspose1d: "transposed convolution",
        CausalDepthwiseConv1d: "depthwise convolution",
        ConvNeXtBlock: "convolution block",
        ResidualUnit: "dilated convolution block",
        nn.Identity: "residual unit with zero weights, skipped",
    }
    return next((name for kind, name in kinds.items() if isinstance(module, kind)), "pointwise")


# --- worked convolution example --------------------------------------------------------------------------------------


def check_convolution(device: torch.device) -> Iterator[CheckLine]:
    """The example of docs/streaming-convolution.md and its variants; the controls drop the history between windows.

    All values are whole numbers, so results must be bit-identical. The oracle of the example is plain Python.
    """
    example = integer_layer(CausalConv1d(1, 1, len(EXAMPLE_KERNEL), bias=False), device)
    by_hand = torch.tensor(example_by_hand(), device=device)
    for name, sizes in EXAMPLE_WINDOWS.items():
        found = _compare_outputs(convolve_in_windows(example, sizes), by_hand)
        yield _convolution_line("kernel 1, 2, 3 over 0 to 11", name, device, found)
    variants = convolution_variants(device)
    for name, layer, sizes in variants:
        whole, _ = layer.forward(example_input(device), zero_history(layer, device))
        found = _compare_outputs(convolve_in_windows(layer, sizes), whole.flatten())
        yield _convolution_line(name, f"windows of {', '.join(map(str, sizes))}", device, found)
    for name, layer in [("kernel 1, 2, 3", example), *((name, layer) for name, layer, _ in variants)]:
        whole, _ = layer.forward(example_input(device), zero_history(layer, device))
        found = _compare_outputs(convolve_in_windows(layer, (4, 4, 4), keep_history=False), whole.flatten())
        yield _convolution_line(f"history dropped: {name}", "windows of 4", device, found, Kind.CONTROL)


def example_by_hand() -> list[float]:
    """Output t is 1 x[t-2] + 2 x[t-1] + 3 x[t], with zeros before the first input."""
    x = [0, 0, *range(EXAMPLE_LENGTH)]
    return [float(sum(weight * x[t + k] for k, weight in enumerate(EXAMPLE_KERNEL))) for t in range(EXAMPLE_LENGTH)]


def convolution_variants(device: torch.device) -> list[tuple[str, CausalLayer, tuple[int, ...]]]:
    """Name, layer and window sizes of the other kinds of convolution; windows are multiples of the stride."""
    return [
        ("dilation 2", integer_layer(CausalConv1d(1, 1, 3, dilation=2), device), (3, 4, 5)),
        ("stride 2", integer_layer(CausalConv1d(1, 1, 4, stride=2), device), (2, 4, 6)),
        ("depthwise", integer_layer(CausalDepthwiseConv1d(1, 3), device), (3, 4, 5)),
        ("transposed, stride 2", integer_layer(CausalConvTranspose1d(1, 1, 4, stride=2), device), (3, 4, 5)),
    ]


def integer_layer(layer: CausalLayer, device: torch.device) -> CausalLayer:
    """Set the weights to 1, 2, 3, ... and the bias, if there is one, to 7."""
    with torch.no_grad():
        weight = layer.conv.weight
        weight.copy_(torch.arange(1.0, 1.0 + weight.numel()).view(weight.shape))
        if layer.conv.bias is not None:
            layer.conv.bias.fill_(7.0)
    return layer.requires_grad_(False).to(device=device, dtype=torch.float32)


def example_input(device: torch.device) -> Tensor:
    """0, 1, ..., 11 as [1, 12, 1]."""
    return torch.arange(float(EXAMPLE_LENGTH), device=device).view(1, EXAMPLE_LENGTH, 1)


def zero_history(layer: CausalLayer, device: torch.device) -> Tensor:
    """The history at the start of a signal."""
    return torch.zeros(1, *layer.history_shape, device=device)


def convolve_in_windows(layer: CausalLayer, sizes: Sequence[int], *, keep_history: bool = True) -> Tensor:
    """Concatenated outputs of windows of `sizes`; without `keep_history` every window starts from zeros."""
    x = example_input(layer.conv.weight.device)
    history, parts = zero_history(layer, x.device), []
    for window in torch.split(x, list(sizes), dim=1):
        y, after = layer.forward(window, history)
        history = after if keep_history else history
        parts.append(y)
    return torch.cat(parts, dim=1).flatten()


def _compare_outputs(got: Tensor, oracle: Tensor) -> Comparison:
    return compare(got, oracle, ("position",), stage="output", limit=INTEGERS.limit)


def _convolution_line(
    claim: str, setting: str, device: torch.device, comparison: Comparison, kind: Kind = Kind.CLAIM
) -> CheckLine:
    return CheckLine(
        group=CONVOLUTION_GROUP,
        claim=claim,
        setting=setting,
        execution=ExecutionInfo(str(device), "float32", 1, "one layer"),
        comparison=comparison,
        tolerance=INTEGERS,
        kind=kind,
    )
