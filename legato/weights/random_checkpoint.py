"""Write checkpoints with random weights in the official file layout, for tests, parity and trying out a size.

Weights depend on the seed and the tensor's name only (NumPy generators), so a checkpoint is the same on every machine.
They are written in blocks, so memory stays small at any size. Does not import torch. The text tokenizer is the official
one: `assets/qwen_tokenizer` has its merges, from which the vocabulary follows.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from legato.config.checkpoint import read_model_config
from legato.config.codec_checkpoint import CODEC_FOLDER
from legato.errors import InputError
from legato.weights.progress import Progress, ProgressCallback
from legato.weights.random_codec_config import Json
from legato.weights.random_configs import CHECKPOINT_KINDS, CheckpointJson, checkpoint_json
from legato.weights.random_tensors import Init, TensorSpec, codec_tensors, main_tensors

BLOCK = 1 << 22
"""Numbers that are generated and written at a time."""

BYTE_SYMBOLS = "".join(map(chr, (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))))
"""The symbols of the 256 bytes in byte-level BPE, in the order of their ids in the official vocabulary."""

SPECIAL_TOKENS = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end")),
    *(f"<|{name}|>" for name in ("box_start", "box_end", "quad_start", "quad_end")),
    *(f"<|{name}|>" for name in ("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")),
    *("<tool_call>", "</tool_call>"),
    *(f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)
"""Special tokens in the order of their ids, which start after the vocabulary."""
PLAIN_TOKENS = frozenset(range(14, 26))
"""Indexes in `SPECIAL_TOKENS` of tokens that the official file does not mark as special."""


def write_checkpoint(
    kind: str, folder: Path, *, seed: int = 0, codec_inside: bool = True, progress: ProgressCallback | None = None
) -> None:
    """Write a random checkpoint of `kind` (one of `CHECKPOINT_KINDS`) into `folder`, which must be empty or missing.

    The talker is bfloat16 and the speech tokenizer float32, as in the official files. Unless `codec_inside`, the speech
    tokenizer is written next to `folder`. 0.6B takes about 2.5 GB on disk, 1.7B about 4.5 GB. Raises `InputError` for
    an unknown kind, or a folder that is not empty.
    """
    if kind not in CHECKPOINT_KINDS:
        raise InputError(f"unknown checkpoint kind {kind!r}: use {', '.join(CHECKPOINT_KINDS)}", field="like")
    folder = Path(folder)
    codec_folder = (folder if codec_inside else folder.parent) / CODEC_FOLDER
    for place in (folder, codec_folder):
        if place.exists() and any(place.iterdir()):
            raise InputError(f"{place} is not empty: choose a new folder", field="folder")
        place.mkdir(parents=True, exist_ok=True)
    files_json = checkpoint_json(kind)
    write_json_files(files_json, folder, codec_folder)
    config = read_model_config(folder, codec_folder)
    jobs = (
        (folder / "model.safetensors", "BF16", tuple(main_tensors(config))),
        (codec_folder / "model.safetensors", "F32", tuple(codec_tensors(config.codec))),
    )
    total = sum(_bytes(spec, dtype) for _, dtype, specs in jobs for spec in specs)
    done = 0
    for path, dtype, specs in jobs:
        for written in _write_tensors(path, specs, dtype, seed):
            done += written
            if progress is not None:
                progress(Progress("write", path.name, done, total))


def write_tokenizer(folder: Path) -> None:
    """Write the official `vocab.json`, `merges.txt` and a `tokenizer_config.json` into `folder`."""
    packed = files("legato").joinpath("assets/qwen_tokenizer/merges.txt.gz").read_bytes()
    merges = gzip.decompress(packed)
    pairs = merges.decode("utf-8").splitlines()
    symbols = [*BYTE_SYMBOLS, *(pair.replace(" ", "") for pair in pairs)]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / "merges.txt").write_bytes(merges)
    text = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":"))
    (folder / "vocab.json").write_text(text, encoding="utf-8")
    specials = {
        str(len(vocabulary) + index): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": index not in PLAIN_TOKENS,
        }
        for index, content in enumerate(SPECIAL_TOKENS)
    }
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": False,
        "added_tokens_decoder": specials,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "model_max_length": 131072,
        "split_special_tokens": False,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", config)


def write_json_files(contents: CheckpointJson, folder: Path, codec_folder: Path) -> None:
    """Write everything except the weights into two existing folders."""
    _write_json(folder / "config.json", contents.config)
    _write_json(folder / "generation_config.json", contents.generation)
    _write_json(codec_folder / "config.json", contents.codec)
    _write_json(codec_folder / "preprocessor_config.json", contents.codec_preprocessor)
    if contents.has_tokenizer:
        write_tokenizer(folder)


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


# --- tensors ---------------------------------------------------------------------------------------------------------


def _write_tensors(path: Path, specs: tuple[TensorSpec, ...], dtype: str, seed: int) -> Iterator[int]:
    """Write a safetensors file; yields the bytes of each block as it is written."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + _bytes(spec, dtype)
        header[spec.name] = {"dtype": dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    packed = json.dumps(header, separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    with path.open("wb") as file:
        file.write(len(packed).to_bytes(8, "little"))
        file.write(packed)
        for spec in specs:
            for block in _blocks(spec, seed):
                raw = to_bfloat16(block).tobytes() if dtype == "BF16" else block.astype("<f4").tobytes()
                file.write(raw)
                yield len(raw)


def _bytes(spec: TensorSpec, dtype: str) -> int:
    return prod(spec.shape) * (2 if dtype == "BF16" else 4)


def _blocks(spec: TensorSpec, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    """The values of one tensor, in blocks, from its own generator."""
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(spec.name.encode())]))
    remaining = prod(spec.shape)
    while remaining:
        count = min(remaining, BLOCK)
        yield _random_values(generator, spec, count)
        remaining -= count


def _random_values(generator: np.random.Generator, spec: TensorSpec, count: int) -> npt.NDArray[np.float32]:
    ranges = {Init.NORM: (0.7, 1.3), Init.SCALE: (0.5, 1.0), Init.USAGE: (0.5, 2.0)}
    if spec.init is Init.FLAG:
        return np.ones(count, dtype=np.float32)
    if spec.init in ranges:
        low, high = ranges[spec.init]
        values: npt.NDArray[np.float32] = generator.random(count, dtype=np.float32)
        values *= np.float32(high - low)
        values += np.float32(low)
        return values
    deviations = {
        Init.MATRIX: 1.2 / spec.inputs**0.5,
        Init.HEAD: 1.5 / spec.inputs**0.5,
        Init.TRUNK: 0.6 / spec.inputs**0.5,
        Init.BRANCH: 0.3 / spec.inputs**0.5,
        Init.WAVE: 0.2 / spec.inputs**0.5,
        Init.EMBEDDING: 0.6,
        Init.BIAS: 0.1,
        Init.SNAKE: 0.2,
        Init.TABLE: 1.0,
    }
    normal: npt.NDArray[np.float32] = generator.standard_normal(count, dtype=np.float32)
    normal *= np.float32(deviations[spec.init])
    return normal


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Convert finite float32 to bfloat16: round to nearest, ties to even."""
    bits = values.astype("<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    bfloat16: npt.NDArray[np.uint16] = (rounded >> np.uint32(16)).astype("<u2")
    return bfloat16
