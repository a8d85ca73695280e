"""Reads and writes the records of the official package: arrays per checkpoint, facts, and the reduced form in git.

Defines the file layout. A thin record has every n-th column of its widest arrays and the first frames of others;
`Record.reduce` brings a full result into the same form, so that one comparison works with both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FACTS = "oracle.json"

THIN_COLUMNS = {"logits": 32, "predictor_logits": 128, "wave": 24, "decode": 24, "mel": 4}
"""Keep every n-th value of the last axis."""
THIN_FRAMES = {"predictor_scores": 1}
"""Keep the first n of the first axis."""


def kind_of(key: str) -> str:
    """`case#row#what` -> what; `decode#40` -> decode."""
    parts = key.split("#")
    return parts[2] if len(parts) == 3 else parts[0]


@dataclass(frozen=True, slots=True)
class Record:
    """The arrays of one checkpoint and its facts in `oracle.json`."""

    arrays: Mapping[str, npt.NDArray[Any]]
    facts: dict[str, Any]
    columns: dict[str, int]
    frames: dict[str, int]

    def reduce(self, key: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`value` reduced as this record reduces `key`."""
        kind = kind_of(key)
        if kind in self.frames:
            value = value[: self.frames[kind]]
        return value[..., :: self.columns[kind]] if kind in self.columns else value

    def keys(self, kind: str) -> list[str]:
        """Keys of one kind, in the order of the record."""
        return [key for key in self.arrays if kind_of(key) == kind]


def read_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return facts


def read_record(folder: Path, checkpoint: str) -> Record:
    """The record of one checkpoint, full or thin according to `oracle.json`."""
    facts = read_facts(folder)
    with np.load(folder / f"{checkpoint}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    thin = facts.get("thin", {})
    return Record(arrays, facts["checkpoints"][checkpoint], thin.get("columns", {}), thin.get("frames", {}))


def write_thin(source: Path, target: Path) -> int:
    """Write the thin form of the full records in `source`; returns its size in bytes."""
    facts = read_facts(source)
    if "thin" in facts:
        raise ValueError(f"{source} is already a thin record")
    facts["thin"] = {"columns": THIN_COLUMNS, "frames": THIN_FRAMES}
    target.mkdir(parents=True, exist_ok=True)
    for checkpoint in facts["checkpoints"]:
        full = read_record(source, checkpoint)
        thin = Record(full.arrays, full.facts, THIN_COLUMNS, THIN_FRAMES)
        arrays: dict[str, Any] = {key: thin.reduce(key, value) for key, value in full.arrays.items()}
        np.savez_compressed(target / f"{checkpoint}.npz", **arrays)
    (target / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return sum(path.stat().st_size for path in target.iterdir())
