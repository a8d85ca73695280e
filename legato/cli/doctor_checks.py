"""The checks of `legato doctor`. Each returns `Finding` values; nothing is printed and no state is kept."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from legato import __version__
from legato.cli.loading import locate_model
from legato.cli.models import KNOWN, embedded_folder, local_folder
from legato.config.cpus import cpu_name_and_flags, default_threads
from legato.errors import UnsupportedError

State = Literal["ok", "optional", "missing"]
_MIB = 2**20
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. State "optional": absent, but not required for speech. `remedy`: how to install it."""

    state: State
    what: str
    found: str
    remedy: str = ""


def machine_findings() -> list[Finding]:
    """All checks of this machine, most important first."""
    return [
        Finding("ok", "Legato", f"{__version__} in {Path(__file__).parents[1]}"),
        Finding("ok", "Python", f"{platform.python_version()} ({sys.executable}), {platform.platform()}"),
        *torch_findings(),
        cpu_finding(),
        *kernel_findings(),
        Finding("ok", "threads", f"{default_threads()} by default; {os.cpu_count()} logical processors"),
        memory_finding(),
        formats_finding(),
        player_finding(),
        embedded_finding(),
        checkpoints_finding(),
    ]


def torch_findings() -> list[Finding]:
    """torch and CUDA."""
    if importlib.util.find_spec("torch") is None:
        return [Finding("missing", "torch", "not installed", "pip install torch")]
    import torch

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    level = torch.backends.cpu.get_cpu_capability()
    found = [Finding("ok", "torch", f"{torch.__version__} {built}, CPU capability {level}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return [*found, Finding("ok", "CUDA", ", ".join(names))]
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        remedy = (
            "this machine has a GPU, but torch was built without CUDA: install a CUDA build from https://pytorch.org"
        )
        return [*found, Finding("optional", "CUDA", "not usable", remedy)]
    return [*found, Finding("optional", "CUDA", "no device; Legato runs on the CPU")]


def cpu_finding() -> Finding:
    """CPU model and vector extensions."""
    name, flags = cpu_name_and_flags()
    features = [feature for feature in _FEATURES if feature in flags]
    return Finding("ok", "CPU", f"{name} ({', '.join(features)})" if features else name)


def kernel_findings() -> list[Finding]:
    """Native CPU kernels of the language model and the codec; compiles them if they are not cached. Needs torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    from legato.kernels.build import Unavailable
    from legato.kernels.codec_library import codec_library
    from legato.kernels.library import library

    descriptions, reasons = [], []
    for part, loaded in (("language model", library()), ("codec", codec_library())):
        if isinstance(loaded, Unavailable):
            reasons.append(loaded.reason)
            descriptions.append(f"{part}: PyTorch (slower): {loaded.reason}")
        else:
            descriptions.append(f"{part}: native (AMX)" if loaded.amx else f"{part}: native")
    no_compiler = any("no C compiler" in reason for reason in reasons)
    remedy = "install a C compiler as `cc` (Debian, Ubuntu: apt-get install gcc libc6-dev)" if no_compiler else ""
    return [Finding("optional" if reasons else "ok", "native kernels", "; ".join(descriptions), remedy)]


def memory_finding() -> Finding:
    """Free memory, if the system reports it."""
    available, total = _meminfo_bytes("MemAvailable"), _meminfo_bytes("MemTotal")
    if available is None or total is None:
        return Finding("optional", "memory", "unknown on this system")
    return Finding("ok", "memory", f"{available / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB")


def available_memory_bytes() -> int | None:
    """Memory that is available without swapping; None if the system does not report it."""
    return _meminfo_bytes("MemAvailable")


def _meminfo_bytes(key: str) -> int | None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return 1024 * int(fields[key].split()[0]) if key in fields else None


def formats_finding() -> Finding:
    """Audio formats that libsndfile can read and write."""
    import soundfile

    subtypes = soundfile.available_subtypes("OGG") if "OGG" in soundfile.available_formats() else {}
    supported = {"mp3": "MP3" in soundfile.available_formats(), "opus": "OPUS" in subtypes}
    lacking = [name for name, available in supported.items() if not available]
    found = f"wav, flac, mp3, opus, pcm through libsndfile {soundfile.__libsndfile_version__}"
    if lacking:
        remedy = "pip install -U soundfile (its wheels contain libsndfile 1.2 or newer)"
        return Finding("optional", "audio files", f"{found}, without {' and '.join(lacking)}", remedy)
    return Finding("ok", "audio files", f"{found}; sox is not needed, ffmpeg only for aac")


def player_finding() -> Finding:
    """The sound device that `--play` uses."""
    from legato.audio.play import device_name

    try:
        return Finding("ok", "sound device", device_name())
    except UnsupportedError as error:
        return Finding("optional", "sound device", "none available; writing files works", str(error))


def embedded_finding() -> Finding:
    """The embedded voice."""
    folder = embedded_folder()
    if folder is None:
        remedy = "it is part of the repository and of released packages: reinstall Legato, or use another --model"
        return Finding("missing", "embedded voice", "not in this installation", remedy)
    return Finding("ok", "embedded voice", str(folder))


def checkpoints_finding() -> Finding:
    """Official checkpoints in the huggingface_hub cache."""
    cached = [known.hub_id for known in KNOWN if local_folder(known.hub_id)]
    if cached:
        return Finding("ok", "official checkpoints", ", ".join(cached))
    remedy = f"downloaded when first used, e.g. legato say Hello. --model {KNOWN[0].hub_id}"
    return Finding("optional", "official checkpoints", "none in the cache", remedy)


def model_findings(model: str, max_seq_len: int) -> list[Finding]:
    """Memory that a model needs: weights, KV cache per slot, codec history per stream."""
    import torch

    from legato.config.checkpoint import read_model_config
    from legato.config.engine import EngineConfig
    from legato.engine.memory import plan_memory

    folder = locate_model(model)
    config = read_model_config(folder)
    limits = EngineConfig(max_seq_len=max_seq_len)
    full = plan_memory(config, limits)
    half = plan_memory(config, limits, talker_dtype=torch.bfloat16)
    weights = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    position = f"{full.position_bytes / 1024:g} KiB in float32, {half.position_bytes / 1024:g} KiB in bfloat16"
    slot = f"{full.kv_slot_bytes / _MIB:.0f} MiB in float32, {half.kv_slot_bytes / _MIB:.0f} MiB in bfloat16"
    return [
        Finding("ok", "model", f"{config.kind} {config.size} in {folder}"),
        Finding("ok", "weights", f"{weights / _MIB:.0f} MiB on disk"),
        Finding("ok", "KV cache per position", position),
        Finding("ok", "KV cache per slot", f"{max_seq_len} positions: {slot}"),
        Finding("ok", "codec history per stream", f"{full.codec_slot_bytes / _MIB:.1f} MiB in float32"),
        Finding("ok", "engine", f"with default limits: {full}"),
        fingerprint_finding(folder, weights),
    ]


def fingerprint_finding(folder: Path, weights_bytes: int) -> Finding:
    """The numerics fingerprint with default settings. Loads the model, if there is memory for it."""
    from legato.backends.fingerprint import numerics_fingerprint
    from legato.backends.select import load_backend

    what, memory = "numerics fingerprint", available_memory_bytes()
    needed = 2 * weights_bytes  # bfloat16 weights may become float32
    if memory is not None and needed > memory:
        return Finding("optional", what, f"not computed: loading takes up to {needed / 2**30:.1f} GiB of memory")
    fingerprint = numerics_fingerprint(load_backend(folder))
    fields = fingerprint.to_json()
    details = ", ".join(f"{name} {value}" for name, value in fields.items() if name not in ("digest", "checkpoint"))
    return Finding("ok", what, f"{fingerprint.digest} (checkpoint {fingerprint.checkpoint[:12]}, {details})")
