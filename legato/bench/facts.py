"""What every figure depends on besides what was asked: the machine, and the model as it was loaded. Owns nothing.

Each record carries both, so that a line can be read alone and two files can be told apart. Measures nothing itself.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from legato import __version__
from legato.models.load import LoadedModel


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran. `device_name` is the GPU's on CUDA and the processor's else; `cores` are those allowed to us."""

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
class ModelFacts:
    """What ran. `parameters` counts talker, code predictor and codec decoder; `quantisation` is "none" without one."""

    name: str
    kind: str
    parameters: int
    talker_dtype: str
    codec_dtype: str
    quantisation: str
    codebooks: int
    sample_rate_hz: int
    frame_samples: int


def this_machine(device: str) -> Machine:
    """The machine under us, with the number of threads that torch was told to use."""
    cpu = cpu_name()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        device=device,
        device_name=torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu,
        cpu=cpu,
        cores=allowed,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        legato=__version__,
    )


def model_facts(name: str, model: LoadedModel) -> ModelFacts:
    """The model as it was loaded; `name` is what the user called it."""
    modules = (model.talker, model.code_predictor, model.decoder)
    return ModelFacts(
        name=name,
        kind=model.config.kind,
        parameters=sum(_parameters(module) for whole in modules for module in whole.modules()),
        talker_dtype=_dtype(model.talker.codec_head.weight.dtype),
        codec_dtype=_dtype(model.decoder.dtype),
        quantisation=model.quant,
        codebooks=model.config.talker.num_codebooks,
        sample_rate_hz=model.config.codec.sample_rate_hz,
        frame_samples=model.config.codec.frame_samples,
    )


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _parameters(module: nn.Module) -> int:
    """A module's own weights, without its children's; a quantised product counts as many as it stands for."""
    own = sum(weight.numel() for weight in module.parameters(recurse=False))
    inputs, outputs = getattr(module, "in_features", 0), getattr(module, "out_features", 0)
    return own or inputs * outputs


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
