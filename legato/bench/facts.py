"""What every figure depends on besides what was asked: the machine, and the model as it was loaded. Owns nothing.

Each record carries both, so that a line can be read alone and two files can be told apart. Measures nothing itself.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from legato import __version__
from legato.config.model import ModelConfig
from legato.engine.notes import computed_by
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.load import LoadedModel
from legato.models.talker.backbone import Talker


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
    """What ran. `parameters` counts talker, code predictor and codec decoder; `quantisation` is "none" without one.

    `computed_by`: the loader's notes, and on CUDA whether steps are recorded; "" in records older than the field.
    """

    name: str
    kind: str
    parameters: int
    talker_dtype: str
    codec_dtype: str
    quantisation: str
    codebooks: int
    sample_rate_hz: int
    frame_samples: int
    computed_by: str = ""


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


def model_facts(name: str, model: LoadedModel, *, graphs: bool | None = None) -> ModelFacts:
    """The model as it was loaded; `name` is what the user called it. `graphs`: the engine's, None without an engine."""
    return ModelFacts(
        name=name,
        kind=model.config.kind,
        parameters=parameters_of(model.config),
        talker_dtype=_dtype(model.talker.codec_head.weight.dtype),
        codec_dtype=_dtype(model.decoder.dtype),
        quantisation=model.quant,
        codebooks=model.config.talker.num_codebooks,
        sample_rate_hz=model.config.codec.sample_rate_hz,
        frame_samples=model.config.codec.frame_samples,
        computed_by=computed_by(model, graphs=graphs),
    )


def parameters_of(config: ModelConfig) -> int:
    """Numbers that a checkpoint has for talker, code predictor and codec decoder.

    The loaded modules are no measure: rounded or packed they hold other numbers, and layers that add nothing are gone.
    """
    with torch.device("meta"):
        talker = Talker(config.talker)
        predictor = CodePredictor(config.code_predictor, config.talker.stack.hidden_size)
        decoder = CodecDecoder(config.codec.decoder)
    return sum(each.numel() for module in (talker, predictor, decoder) for each in module.parameters())


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
