"""A checkpoint's folder -> the same with 8- or 4-bit weights in talker and code predictor: `write_quantized`.

The speech tokenizer, the text tokenizer and all settings are copied as they are. Owns nothing after it returns; memory
holds the rounded weights once. Knows no engine.
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
from legato.models import names
from legato.models.layers.quantized import Int4Store, Int8Store
from legato.models.load import load_model
from legato.models.quantize import rounded_names, stores
from legato.models.stored import weight_files


def write_quantized(source: Path, folder: Path, mode: str) -> int:
    """Write `source` with weights rounded to `mode` ("int8" or "int4") into `folder`; returns the bytes of its weights.

    Raises `UnsupportedError` for another mode or a source that is rounded already, `InputError` for a folder in use.
    """
    if mode not in STORED:
        raise UnsupportedError(f"a checkpoint is stored as {' or '.join(STORED)}, not as {mode!r}", field="quant")
    if read_model_config(source).quantization != NONE:
        raise UnsupportedError(f"{source} is quantised already: start from the original", field="source")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose a new folder", field="folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = rounded_tensors(source, mode)
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


def rounded_tensors(source: Path, mode: str) -> dict[str, Tensor]:
    """All tensors of the main file by name: those that are not rounded as they were."""
    model = load_model(source, talker_dtype="bfloat16", compiled=False)
    parts: dict[str, nn.Module] = {names.TALKER: model.talker, names.CODE_PREDICTOR: model.code_predictor}
    gone = {prefix + name for prefix, part in parts.items() for name in rounded_names(part)}
    tensors: dict[str, Tensor] = {}
    for file in weight_files(source):
        with safe_open(str(file), framework="pt") as reader:
            tensors |= {name: reader.get_tensor(name) for name in reader.keys() if name not in gone}  # noqa: SIM118
    for prefix, part in parts.items():
        stores(part, mode)
        for path, store in part.named_modules():
            if isinstance(store, Int8Store | Int4Store):
                tensors |= {f"{prefix}{path}.{name}": tensor for name, tensor in store.state_dict().items()}
    return tensors
