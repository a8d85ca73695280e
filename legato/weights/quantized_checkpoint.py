"""Write a copy of a checkpoint with int8 or int4 weights in talker and code predictor: `write_quantized`.

Speech tokenizer, text tokenizer and all settings are copied unchanged. Memory holds the quantized weights once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from legato.config.checkpoint import read_model_config
from legato.config.codec_checkpoint import CODEC_FOLDER, codec_location
from legato.config.quantization import KEY, METHOD, NONE, STORED
from legato.errors import InputError, UnsupportedError
from legato.models.layers.norm import RMSNorm
from legato.weights import name_mapping as names
from legato.weights.equalization import equalization
from legato.weights.loading import load_model
from legato.weights.quantization import quantize_modules, quantized_names
from legato.weights.quantized_linear import Int4Linear, Int8Linear
from legato.weights.safetensors_reader import weight_files


def write_quantized(source: Path, folder: Path, mode: str) -> int:
    """Write `source`, quantized to `mode` ("int8" or "int4"), into `folder`; returns the bytes of its weights.

    Raises `UnsupportedError` for another mode or an already quantized source, `InputError` if `folder` is not empty.
    """
    if mode not in STORED:
        raise UnsupportedError(
            f"a checkpoint can be quantized to {' or '.join(STORED)}, not to {mode!r}", field="quant"
        )
    if read_model_config(source).quantization != NONE:
        raise UnsupportedError(f"{source} is already quantized: start from the original", field="source")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose a new folder", field="folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = quantized_tensors(source, mode)
    save_file(tensors, str(folder / names.MAIN_FILE), metadata={"format": "pt"})
    shutil.copymode(source / "config.json", folder / names.MAIN_FILE)
    left = {path.name for path in weight_files(source)} | {f"{names.MAIN_FILE}.index.json", "config.json"}
    for path in source.iterdir():
        if path.is_file() and path.name not in left:
            shutil.copyfile(path, folder / path.name)
    shutil.copytree(codec_location(source, None), folder / CODEC_FOLDER, dirs_exist_ok=True)
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    settings[KEY] = {"quant_method": METHOD, "mode": mode}
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    return sum(tensor.nbytes for tensor in tensors.values())


def quantized_tensors(source: Path, mode: str) -> dict[str, Tensor]:
    """All tensors of the main file by name. Of those that are not quantized, only norms change, by powers of two."""
    model = load_model(source, talker_dtype="bfloat16")
    parts: dict[str, nn.Module] = {names.TALKER: model.talker, names.CODE_PREDICTOR: model.code_predictor}
    dropped = {prefix + name for prefix, part in parts.items() for name in quantized_names(part)}
    tensors: dict[str, Tensor] = {}
    for file in weight_files(source):
        with safe_open(str(file), framework="pt") as reader:
            tensors |= {name: reader.get_tensor(name) for name in reader.keys() if name not in dropped}  # noqa: SIM118
    for prefix, part in parts.items():
        scales = equalization(part)
        for path, linear in quantize_modules(part, mode, scales).named_modules():
            if isinstance(linear, Int8Linear | Int4Linear):
                tensors |= {f"{prefix}{path}.{name}": tensor for name, tensor in linear.state_dict().items()}
        for path, norm in part.named_modules():
            if isinstance(norm, RMSNorm) and norm in scales.divisors:
                stored = tensors[f"{prefix}{path}.weight"]  # not the loaded one, which may be rounded
                tensors[f"{prefix}{path}.weight"] = stored / scales.divisors[norm].to(stored)
    return tensors
