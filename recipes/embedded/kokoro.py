"""The teacher: Kokoro-82M as a float32 ONNX graph with phoneme durations as an additional output.

The available graph is int8 with dynamic activation scales, which is slower than float32 on a CPU, so it is converted.
The input is Kokoro's phoneme string. Weights: Apache-2.0.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import paths
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_DURATION_UNIT = 600
_ONE, _ZERO = "float_scale_one", "uint8_zero_point"


def ensure_float_graph() -> Path:
    """Write the float32 graph if it does not exist, and return its path."""
    if not paths.KOKORO_F32.exists():
        model = to_float(onnx.load(str(paths.KOKORO_INT8)))
        partial = paths.KOKORO_F32.with_suffix(".partial")
        onnx.save(model, str(partial))
        partial.rename(paths.KOKORO_F32)
    return paths.KOKORO_F32


def to_float(model: ModelProto) -> ModelProto:
    """Convert the int8 graph to float activations and add the rounded durations as a second output.

    Dynamic quantization becomes the identity with scale 1 and zero point 0. Integer matmuls and convolutions become
    float ones on the weights minus their zero points; the scales that follow in the graph stay valid. The graph also
    rounds biases to integers of the activation scale; with scale 1 this rounding must be removed.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    floats: dict[str, TensorProto] = {}

    def float_weight(node: NodeProto) -> str:
        name, zero = node.input[1], node.input[3] if len(node.input) > 3 else ""
        target = f"{name}.float"
        if target not in floats:
            value = numpy_helper.to_array(weights[name]).astype(np.float32)
            if zero:
                value = value - _broadcastable(numpy_helper.to_array(weights[zero]).astype(np.float32), value.ndim)
            floats[target] = numpy_helper.from_array(value, target)
        return target

    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            for source, output in zip((node.input[0], _ONE, _ZERO), node.output, strict=True):
                nodes.append(helper.make_node("Identity", [source], [output]))
        elif node.op_type in ("ConvInteger", "MatMulInteger"):
            plain = helper.make_node(
                node.op_type.removesuffix("Integer"), [node.input[0], float_weight(node)], list(node.output), node.name
            )
            plain.attribute.extend(node.attribute)
            nodes.append(plain)
        elif (node.op_type, "bias_tmp_quant" in node.input[0]) == ("Floor", True) or (
            node.op_type == "Cast" and "bias_quant_rounded" in node.input[0]
        ):
            nodes.append(helper.make_node("Identity", list(node.input), list(node.output)))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *floats.values()])
    graph.initializer.append(helper.make_tensor(_ONE, TensorProto.FLOAT, [], [1.0]))
    graph.initializer.append(helper.make_tensor(_ZERO, TensorProto.UINT8, [], [0]))
    del graph.value_info[:]
    graph.output.append(helper.make_tensor_value_info(_durations_output(nodes), TensorProto.FLOAT, None))
    return model


def _broadcastable(zero_point: NDArray[np.float32], ndim: int) -> NDArray[np.float32]:
    if zero_point.size == 1:
        return zero_point.reshape(())
    return zero_point.reshape((-1,) + (1,) * (ndim - 1)) if ndim > 2 else zero_point.reshape(1, -1)


def _durations_output(nodes: list[NodeProto]) -> str:
    (rounding,) = [node for node in nodes if node.op_type == "Round"]
    clip = next(node for node in nodes if rounding.output[0] in node.input)
    return clip.output[0]


class Kokoro:
    """An ONNX session of the graph. Deterministic: the same phonemes and voice give the same samples."""

    def __init__(self, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(ensure_float_graph()), options, providers=["CPUExecutionProvider"]
        )
        self._ids: dict[str, int] = json.loads(paths.KOKORO_VOCABULARY.read_text())["vocab"]

    def unknown(self, phonemes: str) -> set[str]:
        """Characters that are not in the model's vocabulary."""
        return set(phonemes) - set(self._ids)

    def speak(
        self, phonemes: str, styles: NDArray[np.float32], speed: float = 1.0
    ) -> tuple[NDArray[np.float32], list[int]]:
        """Synthesize. Returns samples at 24 kHz and durations in units of 600 samples (one per character and end)."""
        ids = [self._ids[character] for character in phonemes]
        style = styles[min(len(ids), len(styles)) - 1][None]
        feed = {
            "tokens": np.array([[0, *ids, 0]], np.int64),
            "style": style,
            "speed": np.array([speed], np.float32),
        }
        samples, durations = self._session.run(None, feed)
        return np.asarray(samples, np.float32).ravel(), [int(unit) for unit in np.asarray(durations).ravel()]


def load_styles(voice: str) -> NDArray[np.float32]:
    """Style vectors of a voice, [510, 256]; row n - 1 is for n phonemes."""
    return np.fromfile(paths.KOKORO_VOICES / f"{voice}.bin", dtype=np.float32).reshape(-1, 256)
