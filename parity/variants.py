"""Edited copies of a checkpoint: a copy that stops at a chosen frame, and copies with one fault for negative controls.

Writes files and keeps nothing. Both sides read the copy from disk, so that neither is edited in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

STOP_FACTOR = 1.5
HEAD = "talker.codec_head.weight"


def edited_copy(source: Path, target: Path, file: str, name: str, edit: Callable[[torch.Tensor], None]) -> Path:
    """Copy the checkpoint `source` to `target` with tensor `name` of `file` edited in place; other files are linked."""
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if path.is_dir():
            (target / relative).mkdir(parents=True, exist_ok=True)
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        (target / relative).unlink(missing_ok=True)
        if str(relative) != file:
            os.symlink(path.resolve(), target / relative)
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(str(source / file), framework="pt") as reader:
        for key in reader.keys():  # noqa: SIM118 (not a mapping)
            tensors[key] = reader.get_tensor(key)
        metadata = reader.metadata()
    edit(tensors[name])
    save_file(tensors, str(target / file), metadata=metadata)
    return target


def stopping_copy(source: Path, target: Path, *, eos: int, winner: int) -> Path:
    """A copy whose end-of-speech row wins wherever the code `winner` would have won with a positive logit."""

    def edit(head: torch.Tensor) -> None:
        head[eos] = head[winner] * STOP_FACTOR

    return edited_copy(source, target, "model.safetensors", HEAD, edit)


def scaled_copy(source: Path, target: Path, *, file: str, name: str, index: tuple[int, ...], factor: float) -> Path:
    """A copy with one element of one tensor multiplied by `factor`: a fault that a comparison has to find."""

    def edit(tensor: torch.Tensor) -> None:
        tensor[index] = tensor[index] * factor

    return edited_copy(source, target, file, name, edit)
