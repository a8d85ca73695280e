"""Load a checkpoint and choose the backend that executes it.

The CPU kernels are used where they are available, PyTorch everywhere else.
"""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from pathlib import Path

from legato.backends.base import Backend
from legato.backends.cpu.backend import CpuBackend
from legato.backends.torch import TorchBackend
from legato.backends.torch_quantized import TorchKernels
from legato.config.cpus import cpu_name_and_flags, kernel_instructions
from legato.errors import InputError
from legato.kernels.codec_library import CodecLibrary, codec_library
from legato.kernels.library import Library, library
from legato.weights.loading import DTYPES, LoadedModel, ProgressCallback, load_model

AUTO = "auto"
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def load_backend(
    folder: Path,
    *,
    device: str = "cpu",
    dtype: str = AUTO,
    codec_dtype: str = AUTO,
    quant: str | None = None,
    keep_reference: bool = False,
    progress: ProgressCallback | None = None,
) -> Backend:
    """Load the checkpoint in `folder` and build its backend. No engine is started.

    `dtype` of talker and code predictor, `codec_dtype` of the codec: "float32", "bfloat16" or "auto" (float32; on CUDA
    bfloat16 for talker and code predictor; the codec with weights that are quantized by default: bfloat16 on CPUs that
    multiply it). `quant`: see `load_model`; None is the default. Reference weights that the backend executes from
    copies of its own are released unless `keep_reference`, which verification needs. Raises `InputError` for an unknown
    device or dtype, and the errors of `load_model`.
    """
    check_device(device)
    model = load_model(
        folder,
        talker_dtype=resolve_dtype("dtype", dtype, default="float32" if device == "cpu" else "bfloat16"),
        codec_dtype=None if codec_dtype == AUTO else resolve_dtype("codec_dtype", codec_dtype, default="float32"),
        device=device,
        quant=quant,
        fast_int8=has_fast_int8(),
        fast_bf16=has_fast_bf16(),
        progress=progress,
    )
    backend = build_backend(model)
    if not keep_reference:
        del model
        backend.release_replaced_weights()
        return_freed_memory()
    return backend


def build_backend(model: LoadedModel, *, native: bool = True) -> TorchBackend:
    """Build the backend that executes `model`. Without `native`, it is always `TorchBackend`.

    CUDA graphs need the engine's KV cache and slots: the engine wraps this backend in a `CudaGraphsBackend`.
    """
    if not native or model.device.type != "cpu":
        return TorchBackend(model)
    return CpuBackend(model, library(), codec_library())


def return_freed_memory() -> None:
    """Return freed heap memory to the system, where the C library can (glibc).

    Converting, packing and quantizing weights leaves holes between live tensors. The process would keep them: 240 MiB
    after loading a 0.6B checkpoint in int8 with a bfloat16 codec.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def has_fast_int8() -> bool:
    """Whether int8 matmuls are faster than bfloat16 ones on this machine, with the C kernels or PyTorch's."""
    return isinstance(library(), Library) or TorchKernels.detect().int8


def has_fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16, with the C kernels of the codec."""
    instructions = kernel_instructions(cpu_name_and_flags()[1], platform.machine())
    return isinstance(codec_library(), CodecLibrary) and "BF16" in instructions.split()


def check_device(device: str) -> None:
    """Raise `InputError` unless `device` is cpu, cuda or cuda:N."""
    if not _DEVICE.fullmatch(device):
        raise InputError(f"unknown device {device!r}: use cpu, cuda or cuda:N", field="device")


def resolve_dtype(field: str, dtype: str, *, default: str) -> str:
    """`dtype`, or `default` for "auto". Raises `InputError` for an unknown dtype."""
    if dtype == AUTO:
        return default
    if dtype not in DTYPES and dtype != "float16":  # `load_model` explains why float16 is not supported
        raise InputError(f"unknown {field} {dtype!r}: use {AUTO}, {' or '.join(DTYPES)}", field=field)
    return dtype
