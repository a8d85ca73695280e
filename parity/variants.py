"""Edited copies of a checkpoint: one that stops at a chosen frame, and faulty ones for the negative controls.

Both sides load the copy from disk, so neither needs in-memory edits.
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
    """Copy checkpoint `source` to `target` and edit tensor `name` of `file`; other files are symlinks."""
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
    """A copy that chooses end of speech where the original chooses the code `winner` with a positive logit."""

    def edit(head: torch.Tensor) -> None:
        head[eos] = head[winner] * STOP_FACTOR

    return edited_copy(source, target, "model.safetensors", HEAD, edit)


def scaled_copy(source: Path, target: Path, *, file: str, name: str, index: tuple[int, ...], factor: float) -> Path:
    """A copy with one tensor element multiplied by `factor`."""

    def edit(tensor: torch.Tensor) -> None:
        tensor[index] = tensor[index] * factor

    return edited_copy(source, target, file, name, edit)
