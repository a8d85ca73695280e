"""Roofline model: measured limits of the machine, and the bytes and FLOPs of each step.

Memory bandwidth by working set and GEMM throughput by dtype are measured, with the configured number of threads.
Bytes and FLOPs are counted from the weights, independent of the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.backends.base import Backend
from legato.backends.cpu.lm import NativeInt8Linear
from legato.bench.records import MIB, GemmThroughput, ReadBandwidth, Roofline
from legato.config.model import TransformerConfig
from legato.kernels.build import Unavailable
from legato.kernels.library import Library, library
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.quantizer import Codebook
from legato.models.layers.conv import CausalConvTranspose1d
from legato.models.talker.state import TalkerCache
from legato.weights.quantized_linear import to_int8

Gemm = Callable[[], object]
"""Multiplies two square matrices."""
GemmFactory = Callable[[int, torch.device], list[Gemm]]
"""All implementations of a GEMM at a size, in the same order at every size."""

WORKING_SETS_MIB = (2, 8, 16, 32, 64, 128, 512)
GEMM_SIZES = (512, 1024, 2048)
"""Sizes of the square matrices. The best throughput is used."""
SKIP_FACTOR = 4
"""An implementation this many times slower than the best is skipped at larger sizes, where it would take minutes."""
SECONDS = 0.1
"""Measuring time for each kernel and size. The fastest repetition is used."""

_FLOPS_PER_MAC = 2
_CONV_WEIGHT_DIMS = 3


# --- limits of the machine -------------------------------------------------------------------------------------------


def measure_roofline(
    device: torch.device,
    synchronize: Callable[[], None],
    *,
    working_sets_mib: tuple[int, ...] = WORKING_SETS_MIB,
    seconds: float = SECONDS,
) -> Roofline:
    """Measure bandwidth and GEMM throughput of `device`. `synchronize` waits for its queued work."""
    with torch.inference_mode():
        reads = tuple(
            ReadBandwidth(size_mib, _read_bandwidth(size_mib * MIB, device, synchronize, seconds))
            for size_mib in working_sets_mib
        )
        gemm = [GemmThroughput("float32", _gemm_throughput(_GEMMS["float32"], device, synchronize, seconds, 0.0))]
        lower_bound = gemm[0].flops_per_s  # values of any dtype can also be multiplied as float32
        for name in ("bfloat16", "int8"):
            throughput = _gemm_throughput(_GEMMS[name], device, synchronize, seconds, lower_bound)
            gemm.append(GemmThroughput(name, throughput))
    return Roofline(reads, tuple(gemm))


def fastest_s(compute: Callable[[], object], synchronize: Callable[[], None], seconds: float) -> float:
    """Time of the fastest repetition within `seconds` (at least three repetitions), after one warm-up call."""
    compute()
    synchronize()
    best, repetitions, until = float("inf"), 0, time.perf_counter() + seconds
    while repetitions < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        compute()
        synchronize()
        best = min(best, time.perf_counter() - started)
        repetitions += 1
    return best


def _read_bandwidth(size: int, device: torch.device, synchronize: Callable[[], None], seconds: float) -> float:
    """Bytes per second: the faster of a sum and a dot product over the same values."""
    values = torch.ones(size // 4, device=device)
    first, second = values.chunk(2)
    kernels = (values.sum, lambda: torch.dot(first, second))
    return size / min(fastest_s(each, synchronize, seconds) for each in kernels)


def _gemm_throughput(
    factory: GemmFactory, device: torch.device, synchronize: Callable[[], None], seconds: float, lower_bound: float
) -> float:
    """FLOPs per second: the best of all implementations and sizes, and of `lower_bound`."""
    best, skipped = lower_bound, set[int]()
    for size in GEMM_SIZES:
        tried = {index: gemm for index, gemm in enumerate(factory(size, device)) if index not in skipped}
        rates = {index: 2 * size**3 / fastest_s(gemm, synchronize, seconds) for index, gemm in tried.items()}
        best = max(best, *rates.values()) if rates else best
        skipped |= {index for index, rate in rates.items() if rate < best / SKIP_FACTOR}
    return best


def _torch_gemm(dtype: torch.dtype) -> GemmFactory:
    def factory(size: int, device: torch.device) -> list[Gemm]:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        return [lambda: torch.matmul(a, b)]

    return factory


def _int8_gemms(size: int, device: torch.device) -> list[Gemm]:
    """torch's int8 GEMM, and the native linear layer where its library is available."""
    a, b = (torch.randint(-100, 100, (size, size), dtype=torch.int8, device=device) for _ in range(2))
    gemms: list[Gemm] = [lambda: torch._int_mm(a, b)]
    found = library() if device.type == "cpu" else Unavailable("")
    if isinstance(found, Library):
        inputs, linear = a.float(), NativeInt8Linear(to_int8(b.float(), None), found)
        gemms.append(lambda: linear(inputs))
    return gemms


_GEMMS: dict[str, GemmFactory] = {
    "float32": _torch_gemm(torch.float32),
    "bfloat16": _torch_gemm(torch.bfloat16),
    "int8": _int8_gemms,
}


# --- cost of a step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepCost:
    """Bytes and FLOPs of one step. `flops` is for all rows.

    `weight_bytes` counts the weights as stored, once for each pass over them. `state_bytes` is KV cache or codec
    history, read and written. Embedding look-ups and activations, which stay in cache, are not counted.
    `working_set_bytes`: memory that is read repeatedly. If it fits in a cache, the limit is that cache's bandwidth.
    """

    weight_bytes: int
    state_bytes: int
    flops: int
    working_set_bytes: int

    @property
    def bytes(self) -> int:
        """Minimum memory traffic."""
        return self.weight_bytes + self.state_bytes


def talker_cost(backend: Backend, cache: TalkerCache, *, rows: int, context: int) -> StepCost:
    """One decode step of `rows` sequences with `context` earlier positions: input, layers, codec head."""
    talker, stack = backend.talker, backend.model.config.talker.stack
    parts: list[nn.Module] = [talker.model.layers, talker.model.norm, talker.codec_head]
    parts += [child for name, child in talker.named_children() if name == "text_projection"]
    weights = sum(map(stored_bytes, parts))
    attention = stack.num_hidden_layers * _attention_macs(stack, context + 1)
    return StepCost(
        weight_bytes=weights,
        state_bytes=rows * (context + 2) * cache.bytes_per_position,
        flops=_FLOPS_PER_MAC * rows * (sum(map(linear_macs, parts)) + attention),
        working_set_bytes=weights + rows * (context + 1) * cache.bytes_per_position,
    )


def predictor_cost(backend: Backend, *, rows: int) -> StepCost:
    """One frame of `rows` sequences: one pass through the layers per residual codebook, and each head once."""
    predictor, config = backend.code_predictor, backend.model.config.code_predictor
    passes = config.num_codebooks - 1
    body: list[nn.Module] = [predictor.model.layers, predictor.model.norm, predictor.small_to_mtp_projection]
    layers, heads = sum(map(stored_bytes, body)), stored_bytes(predictor.lm_head)
    attended = sum(range(2, config.num_codebooks + 1))
    attention = config.stack.num_hidden_layers * _attention_macs(config.stack, 1) * attended
    macs = (passes + 1) * sum(map(linear_macs, body)) + linear_macs(predictor.lm_head) + attention
    return StepCost(
        weight_bytes=passes * layers + heads,
        state_bytes=0,
        flops=_FLOPS_PER_MAC * rows * macs,
        working_set_bytes=layers + heads,
    )


def codec_cost(backend: Backend, *, rows: int, frames: int) -> StepCost:
    """A window of `frames` frames of `rows` streams."""
    decoder = backend.decoder
    history = rows * decoder.initial_history(1).row_bytes
    weights = stored_bytes(decoder)
    return StepCost(
        weight_bytes=weights,
        state_bytes=2 * history,
        flops=_FLOPS_PER_MAC * rows * frames * codec_macs_per_frame(backend.model.decoder),
        working_set_bytes=weights + history,
    )


def codec_macs_per_frame(decoder: CodecDecoder) -> int:
    """Multiply-accumulates of one frame.

    `modules()` yields the modules in execution order, so `positions` is the number of positions per frame at each
    module: every upsampling multiplies it by its stride. A transposed convolution runs at the rate of its input.
    """
    config, macs, positions, stride = decoder.config, 0, 1, 1
    for module in decoder.modules():
        if isinstance(module, CausalConvTranspose1d):
            stride = module.stride
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == _CONV_WEIGHT_DIMS:
            macs += positions * weight.numel()
            positions, stride = positions * stride, 1
        else:
            macs += positions * own_linear_macs(module)
    per_layer = 2 * config.num_attention_heads * config.head_dim * config.attention_window
    return macs + config.num_hidden_layers * per_layer


def stored_bytes(module: nn.Module) -> int:
    """Bytes of all weights below `module` except embeddings. Packed weights report their `weight_bytes`."""
    if isinstance(module, nn.Embedding | Codebook):
        return 0
    packed_bytes = getattr(module, "weight_bytes", None)
    if isinstance(packed_bytes, int):
        return packed_bytes
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    own_bytes = sum(each.numel() * each.element_size() for each in own)
    return own_bytes + sum(map(stored_bytes, module.children()))


def linear_macs(module: nn.Module) -> int:
    """Multiply-accumulates of one position through every linear layer below `module`."""
    return sum(map(own_linear_macs, module.modules()))


def own_linear_macs(module: nn.Module) -> int:
    """Multiply-accumulates of `module` itself if it is a linear layer of any dtype, else 0."""
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return inputs * outputs if isinstance(inputs, int) and isinstance(outputs, int) else 0


def _attention_macs(stack: TransformerConfig, positions: int) -> int:
    """Scores and weighted sums of one query over `positions` positions, in one layer."""
    return 2 * stack.num_attention_heads * stack.head_dim * positions
