"""Environment metadata stored with every benchmark record: machine and loaded model. Also reads peak memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from legato import __version__
from legato.backends.base import Backend, description_of
from legato.backends.fingerprint import NumericsFingerprint, numerics_fingerprint
from legato.config.model import ModelConfig
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.talker.backbone import Talker
from legato.weights.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine. `device_name`: GPU on CUDA, else CPU. `cores`: number of CPUs that this process may use."""

    device: str
    device_name: str
    cpu: str
    cores: int
    threads: int
    system: str
    python: str
    torch: str
    legato: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. `parameters`: number of parameters of talker, code predictor and codec decoder.

    `quantization`: "none" or the mode. `backend`: description of the backends, on CUDA including whether CUDA graphs
    are used. `fingerprint`: see `backends.fingerprint`. Records written before these fields were added have neither.
    """

    name: str
    kind: str
    parameters: int
    talker_dtype: str
    codec_dtype: str
    quantization: str
    codebooks: int
    sample_rate_hz: int
    frame_samples: int
    backend: str = ""
    fingerprint: NumericsFingerprint | None = None


def this_machine(device: str) -> Machine:
    """This machine, with the number of threads that torch is configured for."""
    cpu = cpu_name()
    usable_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        device=device,
        device_name=torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu,
        cpu=cpu,
        cores=usable_cores,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        legato=__version__,
    )


def model_info(name: str, backend: Backend, *, cuda_graphs: bool | None = None) -> ModelInfo:
    """Describe the model of `backend`. `name`: as the user passed it. `cuda_graphs`: engine setting, or None."""
    model = backend.model
    return ModelInfo(
        name=name,
        kind=model.config.kind,
        parameters=count_parameters(model.config),
        talker_dtype=_dtype(model.language_dtype),
        codec_dtype=_dtype(model.decoder.dtype),
        quantization=model.quant,
        codebooks=model.config.talker.num_codebooks,
        sample_rate_hz=model.config.codec.sample_rate_hz,
        frame_samples=model.config.codec.frame_samples,
        backend=description_of(backend, cuda_graphs=cuda_graphs),
        fingerprint=numerics_fingerprint(backend, cuda_graphs=bool(cuda_graphs)),
    )


def count_parameters(config: ModelConfig) -> int:
    """Number of parameters of talker, code predictor and codec decoder in the checkpoint.

    Counted on meta modules, because quantized and packed modules hold other tensors and loading drops unused layers.
    """
    with torch.device("meta"):
        talker = Talker(config.talker)
        predictor = CodePredictor(config.code_predictor, config.talker.stack.hidden_size)
        decoder = CodecDecoder(config.codec.decoder)
    return sum(parameter.numel() for module in (talker, predictor, decoder) for parameter in module.parameters())


def cpu_name() -> str:
    """The CPU model name as reported by the system."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def synchronize_fn(model: LoadedModel) -> Callable[[], None]:
    """A function that waits for queued work of the model's device; on CPU it does nothing.

    CUDA calls return when their work is queued, so timing with a host clock needs this at the end of every phase.
    """
    weight = model.talker.codec_head.weight
    if not weight.is_cuda:
        return lambda: None
    device = weight.device
    return lambda: torch.cuda.synchronize(device)


def reset_peak_memory(model: LoadedModel) -> None:
    """Reset the peak memory statistics on CUDA. The peak of a process cannot be reset."""
    if model.talker.codec_head.weight.is_cuda:
        torch.cuda.reset_peak_memory_stats()


def peak_memory_bytes(model: LoadedModel) -> int:
    """Peak memory so far: of the device on CUDA, else of this process; weights included."""
    if model.talker.codec_head.weight.is_cuda:
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
