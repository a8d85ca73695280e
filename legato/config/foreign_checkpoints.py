"""Recognize models in other formats, so that errors say what was given and what to do instead.

Looks at names of files and at small JSON files only. Holds no state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".7z")
_LAYOUT = "Legato loads a folder in the official layout (config.json, model.safetensors, speech_tokenizer/, ...)"
_TO_SAFETENSORS = (
    "PyTorch weights, which may contain code and are not loaded: convert them with `save_pretrained(folder, "
    "safe_serialization=True)` of the program that wrote them"
)
_KINDS = {
    ".gguf": "GGUF, the format of llama.cpp, cannot be loaded: use the original checkpoint (--quant makes it small)",
    ".ggml": "GGML, the format of llama.cpp, cannot be loaded: use the original checkpoint",
    ".onnx": "ONNX models cannot be loaded: use the original checkpoint",
    ".safetensors": "a checkpoint is more than its weights: give the folder with the file",
    ".json": "a checkpoint is more than its settings: give the folder with the file",
    **dict.fromkeys(_PICKLED, f"these are {_TO_SAFETENSORS}"),
    **dict.fromkeys(_ARCHIVES, "unpack the archive, and give the folder"),
}
"""Suffix -> what the file is, and what to do."""


def describe_file(path: Path) -> str | None:
    """Describe a path that is no folder, by its suffix; None if it looks like no file of a model.

    The file need not exist: a missing file is not the id of a repository either.
    """
    suffix = path.suffix.lower()
    if suffix in _KINDS:
        exists = "" if path.exists() else "there is no such file; and "
        return f"{exists}{_KINDS[suffix]}"
    return f"it is a file. {_LAYOUT}" if path.is_file() else None


def describe_folder(folder: Path) -> str | None:
    """Describe what a folder holds instead of a checkpoint; None if it does not look like a model in another format."""
    if not folder.is_dir():
        return None
    base = _value(folder / "adapter_config.json", "base_model_name_or_path")
    return describe_names(sorted(path.name for path in folder.iterdir()), adapter_base=base)


def describe_names(names: Sequence[str], *, adapter_base: str | None = None) -> str | None:
    """The same from the names of the files. `adapter_base`: the base model of a LoRA adapter, if known."""
    if "adapter_config.json" in names:
        of = f" of {adapter_base}" if adapter_base else ""
        return (
            f"it is a LoRA adapter{of}: merge it into its base model (`merge_and_unload` of peft), save that as a "
            "folder, and load the folder"
        )
    for name in names:
        if name.lower().endswith((".gguf", ".onnx")):
            return f"it has {name}, and no safetensors weights: {_KINDS[Path(name).suffix.lower()]}"
    pickled = [name for name in names if name.lower().endswith(_PICKLED)]
    if pickled:
        return f"it has {pickled[0]}: these are {_TO_SAFETENSORS}"
    if "model_index.json" in names:
        return "it is a pipeline of diffusers"
    return None


def describe_family(config: dict[str, object]) -> str | None:
    """The family of a `config.json` of another model; None for Qwen3-TTS, or if the file does not say."""
    architectures = config.get("architectures")
    family = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    if not isinstance(family, str) or "qwen3tts" in family.lower().replace("_", ""):
        return None
    return family[:80]


def _value(path: Path, key: str) -> str | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    value = values.get(key) if isinstance(values, dict) else None
    return value[:120] if isinstance(value, str) else None
