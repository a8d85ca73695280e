"""Writes checkpoints with random weights in the official layout on disk: for tests, parity and trying a size out.

Owns nothing after it returns. Weights are drawn with NumPy from the seed and each tensor's name, so that the same
checkpoint comes out on every machine, and written a block at a time: memory stays small at any size. Imports no torch.
The text tokenizer is the official one, from `assets/qwen_tokenizer` (its merges; the vocabulary follows from them).
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
from legato.weights.random_configs import LIKES, CheckpointJson, checkpoint_json
from legato.weights.random_tensors import Draw, TensorSpec, codec_tensors, main_tensors

BLOCK = 1 << 22
"""Numbers drawn and written at a time."""

BYTE_SYMBOLS = "".join(map(chr, (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))))
"""How byte-level BPE spells the 256 bytes, in the order of their ids in the official vocabulary."""

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
"""In the order of their ids, which follow the vocabulary's."""
PLAIN_TOKENS = frozenset(range(14, 26))
"""Places in `SPECIAL_TOKENS` of those that the official file does not mark as special."""


def write_checkpoint(
    like: str, folder: Path, *, seed: int = 0, codec_inside: bool = True, progress: ProgressCallback | None = None
) -> None:
    """Write a random-weight checkpoint like `like` (one of `LIKES`) into `folder`, which must not exist or be empty.

    bfloat16 talker, float32 speech tokenizer, as the official files. `codec_inside` False puts the speech tokenizer
    beside the folder. 0.6B takes about 2.5 GB of disk, 1.7B about 4.5 GB. Raises `InputError` for an unknown kind or a
    folder in use.
    """
    if like not in LIKES:
        raise InputError(f"no checkpoint kind {like!r}; there are {', '.join(LIKES)}", field="like")
    folder = Path(folder)
    codec_folder = (folder if codec_inside else folder.parent) / CODEC_FOLDER
    for place in (folder, codec_folder):
        if place.exists() and any(place.iterdir()):
            raise InputError(f"{place} is not empty: choose a new folder", field="folder")
        place.mkdir(parents=True, exist_ok=True)
    made = checkpoint_json(like)
    write_texts(made, folder, codec_folder)
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
        str(len(vocabulary) + at): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": at not in PLAIN_TOKENS,
        }
        for at, content in enumerate(SPECIAL_TOKENS)
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


def write_texts(made: CheckpointJson, folder: Path, codec_folder: Path) -> None:
    """Everything but the weights, into two folders that exist."""
    _write_json(folder / "config.json", made.config)
    _write_json(folder / "generation_config.json", made.generation)
    _write_json(codec_folder / "config.json", made.codec)
    _write_json(codec_folder / "preprocessor_config.json", made.codec_preprocessor)
    if made.has_tokenizer:
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
    """The numbers of one tensor, in order, from a generator of its own."""
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(spec.name.encode())]))
    left = prod(spec.shape)
    while left:
        count = min(left, BLOCK)
        yield _drawn(generator, spec, count)
        left -= count


def _drawn(generator: np.random.Generator, spec: TensorSpec, count: int) -> npt.NDArray[np.float32]:
    ranges = {Draw.NORM: (0.7, 1.3), Draw.SCALE: (0.5, 1.0), Draw.USAGE: (0.5, 2.0)}
    if spec.draw is Draw.FLAG:
        return np.ones(count, dtype=np.float32)
    if spec.draw in ranges:
        low, high = ranges[spec.draw]
        even: npt.NDArray[np.float32] = generator.random(count, dtype=np.float32)
        even *= np.float32(high - low)
        even += np.float32(low)
        return even
    deviations = {
        Draw.MATRIX: 1.2 / spec.inputs**0.5,
        Draw.HEAD: 1.5 / spec.inputs**0.5,
        Draw.TRUNK: 0.6 / spec.inputs**0.5,
        Draw.BRANCH: 0.3 / spec.inputs**0.5,
        Draw.WAVE: 0.2 / spec.inputs**0.5,
        Draw.EMBEDDING: 0.6,
        Draw.BIAS: 0.1,
        Draw.SNAKE: 0.2,
        Draw.TABLE: 1.0,
    }
    normal: npt.NDArray[np.float32] = generator.standard_normal(count, dtype=np.float32)
    normal *= np.float32(deviations[spec.draw])
    return normal


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite float32 to bfloat16, to nearest, ties to even."""
    bits = values.astype("<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    halves: npt.NDArray[np.uint16] = (rounded >> np.uint32(16)).astype("<u2")
    return halves
