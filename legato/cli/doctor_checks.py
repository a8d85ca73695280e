"""The doctor's findings, each a value. Owns no state, prints nothing."""

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
from legato.cli.model_options import locate_chosen
from legato.cli.models import KNOWN, embedded_folder, local_folder
from legato.cli.threads import default_threads
from legato.errors import UnsupportedError

State = Literal["ok", "optional", "missing"]
_MIB = 2**20
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `optional` means absent and not needed to speak; `remedy` says how to get it."""

    state: State
    what: str
    found: str
    remedy: str = ""


def machine_findings() -> list[Finding]:
    """Everything about this machine, in the order in which it matters."""
    return [
        Finding("ok", "Legato", f"{__version__} in {Path(__file__).parents[1]}"),
        Finding("ok", "Python", f"{platform.python_version()} ({sys.executable}), {platform.platform()}"),
        *torch_findings(),
        cpu_finding(),
        *compiled_findings(),
        Finding("ok", "threads", f"{default_threads()} by default; {os.cpu_count()} logical processors"),
        memory_finding(),
        formats_finding(),
        player_finding(),
        embedded_finding(),
        checkpoints_finding(),
    ]


def torch_findings() -> list[Finding]:
    """torch itself and CUDA."""
    if importlib.util.find_spec("torch") is None:
        return [Finding("missing", "torch", "not installed", "pip install torch")]
    import torch

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    level = torch.backends.cpu.get_cpu_capability()
    found = [Finding("ok", "torch", f"{torch.__version__} {built}, its kernels use {level}")]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return [*found, Finding("ok", "CUDA", ", ".join(names))]
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        remedy = "a GPU is there, but torch was built without CUDA: install torch from https://pytorch.org for it"
        return [*found, Finding("optional", "CUDA", "not usable", remedy)]
    return [*found, Finding("optional", "CUDA", "no device; Legato runs on the CPU")]


def cpu_finding() -> Finding:
    """The processor and its vector units."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    name = facts.get("model name") or platform.processor() or platform.machine()
    features = [feature for feature in _FEATURES if feature in flags]
    return Finding("ok", "CPU", f"{name} ({', '.join(features)})" if features else name)


def compiled_findings() -> list[Finding]:
    """What of the models runs compiled for this CPU; it is compiled now where it never was. Nothing without torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    from legato.models.native.codec_library import codec_library
    from legato.models.native.library import Missing, compiled_words, library

    wanted = {"layers": library(), "codec": codec_library()}
    reasons = {part: made.reason for part, made in wanted.items() if isinstance(made, Missing)}
    told = [
        f"{part} {compiled_words(tiles=made.tiles)}" for part, made in wanted.items() if not isinstance(made, Missing)
    ]
    told += [f"{part} by torch, slower than compiled: {reason}" for part, reason in reasons.items()]
    compiler = any("no C compiler" in reason for reason in reasons.values())
    remedy = "install a C compiler as `cc` (Debian, Ubuntu: apt-get install gcc libc6-dev)" if compiler else ""
    return [Finding("optional" if reasons else "ok", "compiled code", "; ".join(told), remedy)]


def memory_finding() -> Finding:
    """Free memory, where the system says it."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return Finding("optional", "memory", "this system does not say")
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available, total = (int(facts[key].split()[0]) / 2**20 for key in ("MemAvailable", "MemTotal"))
    return Finding("ok", "memory", f"{available:.1f} GiB free of {total:.1f} GiB")


def formats_finding() -> Finding:
    """What can be read and written; all of it comes with the package."""
    import soundfile

    subtypes = soundfile.available_subtypes("OGG") if "OGG" in soundfile.available_formats() else {}
    lacking = [
        name
        for name, there in (("mp3", "MP3" in soundfile.available_formats()), ("opus", "OPUS" in subtypes))
        if not there
    ]
    found = f"wav, flac, mp3, opus, pcm through libsndfile {soundfile.__libsndfile_version__}"
    if lacking:
        remedy = "pip install -U soundfile (its wheels bring libsndfile 1.2 or newer)"
        return Finding("optional", "audio files", f"{found}, without {' and '.join(lacking)}", remedy)
    return Finding("ok", "audio files", f"{found}; sox is not needed, ffmpeg for aac alone")


def player_finding() -> Finding:
    """Whether `--play` can work."""
    from legato.audio.play import device_name

    try:
        return Finding("ok", "sound device", device_name())
    except UnsupportedError as error:
        return Finding("optional", "sound device", "none that can be used; files can be written", str(error))


def embedded_finding() -> Finding:
    """The voice in the package."""
    folder = embedded_folder()
    if folder is None:
        remedy = "it is part of the repository and of released packages: reinstall, or name another --model"
        return Finding("missing", "embedded voice", "not in this installation", remedy)
    return Finding("ok", "embedded voice", str(folder))


def checkpoints_finding() -> Finding:
    """Which official checkpoints are in the hub's cache."""
    here = [known.hub_id for known in KNOWN if local_folder(known.hub_id)]
    if here:
        return Finding("ok", "official checkpoints", ", ".join(here))
    remedy = "fetched when first used, e.g. legato say Hello. --model " + KNOWN[0].hub_id
    return Finding("optional", "official checkpoints", "none in the cache", remedy)


def model_findings(model: str, positions: int) -> list[Finding]:
    """What a model needs: weights on disk, talker cache of a slot, codec history of a stream."""
    import torch

    from legato.config.checkpoint import read_model_config
    from legato.config.engine import EngineConfig
    from legato.engine.memory import plan_memory

    folder = locate_chosen(model)
    config = read_model_config(folder)
    limits = EngineConfig(positions=positions)
    full = plan_memory(config, limits)
    half = plan_memory(config, limits, talker_dtype=torch.bfloat16)
    weights = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    position = f"{full.position_bytes / 1024:g} KiB in float32, {half.position_bytes / 1024:g} KiB in bfloat16"
    slot = f"{full.kv_slot_bytes / _MIB:.0f} MiB in float32, {half.kv_slot_bytes / _MIB:.0f} MiB in bfloat16"
    return [
        Finding("ok", "model", f"{config.kind} {config.size} in {folder}"),
        Finding("ok", "weights", f"{weights / _MIB:.0f} MiB on disk"),
        Finding("ok", "one position", position),
        Finding("ok", "one slot", f"{positions} positions: {slot}"),
        Finding("ok", "one stream", f"{full.codec_slot_bytes / _MIB:.1f} MiB of codec history in float32"),
        Finding("ok", "engine", f"by default {full}"),
    ]
