"""Loads models for commands: thread setting, device check, progress, and the line that describes the loaded model.

Configures torch for the whole process (`set_threads`). torch is imported inside functions only, so that commands which
load no model start fast.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli.model_options import DEFAULT_MODEL, EngineOptions, ModelOptions
from legato.cli.terminal import StatusLine, is_verbose, note
from legato.config.cpus import cpu_name_and_flags, default_threads, vector_isa
from legato.config.quantization import NONE
from legato.errors import UnsupportedError

if TYPE_CHECKING:
    from legato.api import Legato
    from legato.backends.base import Backend
    from legato.weights.loading import LoadedModel
    from legato.weights.progress import Progress

_MIB = 2**20
_SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def set_threads(threads: int | None) -> int:
    """Set the thread count of torch and of the kernels for this process; returns it.

    Also disables TF32, so that float32 is float32 on CUDA: cuDNN convolutions would otherwise round their inputs to 10
    mantissa bits, and so would matmuls if the environment enables it.
    """
    import torch

    from legato.kernels.threads import set_num_threads

    count = threads or default_threads()
    torch.set_num_threads(count)
    set_num_threads(count)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return count


def check_device(device: str) -> None:
    """Raise `UnsupportedError` if torch cannot use `device` on this machine."""
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise UnsupportedError(f"unknown device {device!r}: use cpu, cuda or cuda:N", field="device") from error
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise UnsupportedError(
            f"no device {device}: torch sees {torch.cuda.device_count()} CUDA devices (see `legato doctor`)",
            field="device",
        )


def prepare_device(options: ModelOptions) -> None:
    """Check the device and set the thread count."""
    check_device(options.device)
    set_threads(options.threads)


def locate_model(model: str, revision: str | None = None) -> Path:
    """The checkpoint folder of `model`, downloaded first if necessary, with progress on standard error."""
    from legato.weights.hub import locate

    progress = LoadingLine()
    try:
        return locate(model, revision=revision, progress=progress.show)
    finally:
        progress.clear()


def load_engine(options: ModelOptions, engine: EngineOptions) -> Legato:
    """Load the model and start its engine, with progress and a line that describes the result on standard error."""
    import legato

    prepare_device(options)
    progress = LoadingLine()
    try:
        tts = legato.load(
            options.model,
            revision=options.revision,
            device=options.device,
            dtype=options.dtype,
            codec_dtype=options.codec_dtype,
            max_num_seqs=engine.max_num_seqs,
            max_seq_len=engine.max_seq_len,
            max_queue=engine.max_queue,
            yield_s=engine.yield_s,
            quant=options.quant,
            deterministic=engine.deterministic,
            cuda_graphs=engine.cuda_graphs,
            progress=progress.show,
        )
    finally:
        progress.clear()
    note(loaded_line(options, tts.backend))
    if is_verbose() or options.quant not in (None, NONE) or not _is_fully_native(tts.backend):
        print_backend_notes(tts.backend)
    elif tts.backend.model.quant_note:
        note(tts.backend.model.quant_note)
    return tts


def load_weights(options: ModelOptions, *, keep_reference: bool = False) -> Backend:
    """Load the model without an engine, for measurements and checks. Call `prepare_device` first.

    `keep_reference`: see `load_backend`; verification needs it. The backend notes are always printed: they are part of
    what is measured.
    """
    from legato.backends.select import load_backend

    progress = LoadingLine()
    try:
        backend = load_backend(
            locate_model(options.model, options.revision),
            device=options.device,
            dtype=options.dtype,
            codec_dtype=options.codec_dtype,
            quant=options.quant,
            keep_reference=keep_reference,
            progress=progress.show,
        )
    finally:
        progress.clear()
    note(loaded_line(options, backend))
    print_backend_notes(backend)
    return backend


def loaded_line(options: ModelOptions, backend: Backend) -> str:
    """Model, device, threads, kernels and number formats in one line."""
    import torch

    name = "embedded voice" if options.model == DEFAULT_MODEL else options.model
    details = [_kernels(backend), _formats(backend.model)]
    if options.device.startswith("cpu"):
        threads = torch.get_num_threads()
        details.insert(0, "1 thread" if threads == 1 else f"{threads} threads")
    return f"loaded {name} on {options.device} ({', '.join(details)})"


def _kernels(backend: Backend) -> str:
    native = _native_parts(backend)
    if not native:
        return "PyTorch kernels"
    isa = vector_isa(cpu_name_and_flags()[1], platform.machine())
    kernels = f"native {isa} kernels" if isa else "native kernels"
    return kernels if len(native) == 2 else f"{kernels} for the {native[0]} only"


def _native_parts(backend: Backend) -> list[str]:
    """The parts of the model that run on native CPU kernels: "language model", "codec"."""
    from legato.backends.cpu.lm import NativeLayers

    parts = []
    if isinstance(backend.talker.model.layers, NativeLayers):
        parts.append("language model")
    if backend.batch_invariance.codec:  # true exactly for the native codec
        parts.append("codec")
    return parts


def _is_fully_native(backend: Backend) -> bool:
    return len(_native_parts(backend)) == 2


def _formats(model: LoadedModel) -> str:
    def short(dtype: object) -> str:
        return _SHORT_DTYPES[str(dtype).removeprefix("torch.")]

    weights = model.quant if model.quant != NONE else short(model.language_dtype)
    codec = short(model.decoder.dtype)
    return weights if weights == codec else f"{weights}, {codec} codec"


def print_backend_notes(backend: Backend) -> None:
    """Print the quantization, and which backend runs each part of the model with the reason for a fallback."""
    for line in (backend.model.quant_note, *backend.description):
        if line:
            note(line)


class LoadingLine:
    """Progress of downloading, loading or writing a checkpoint, as one status line."""

    def __init__(self) -> None:
        self._line = StatusLine(every_s=5.0)

    def show(self, progress: Progress) -> None:
        """Callback for the loader."""
        total = f" of {progress.total / _MIB:.0f}" if progress.total else ""
        text = f"{progress.stage} {progress.item}: {progress.done / _MIB:.0f}{total} MiB"
        # Loading is fast: its progress would only clutter a log file.
        if progress.stage in ("download", "write") or self._line.live:
            self._line.show(text, time.monotonic())

    def clear(self) -> None:
        """Erase the line."""
        self._line.clear()
