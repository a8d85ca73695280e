"""Update the recordings: `python -m tests.frozen.record`. Writes changed files and prints their names."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from tests.frozen.codes import rounding_dependent
from tests.frozen.recordings import FOLDER, RECORDINGS, agree, path_of, record_now, recorded, text_of
from tests.frozen.subjects import Folder, Subjects, subjects, write_tiny


def folders(root: Path) -> Folder:
    """Tiny checkpoints in `root`, each written on first use."""

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            write_tiny(kind, path)
        return path

    return folder


def update(found: Subjects) -> list[str]:
    """Write the changed files and return their names. Differences within the tolerance do not count."""
    changed: list[str] = []
    for name in RECORDINGS:
        value = record_now(name, found)
        if path_of(name).exists() and agree(recorded(name), value):
            continue
        path_of(name).write_text(text_of(value), encoding="utf-8")
        changed.append(name)
    return changed


def main() -> int:
    """Record everything, unless codes could differ on another CPU."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, subjects(folders(Path(root))) as found:
        cases = rounding_dependent(found)
        if cases:
            print(f"not recorded: the codes of {', '.join(cases)} depend on rounding; choose other seeds in codes.py")
            return 1
        changed = update(found)
    print("\n".join(f"changed: {path_of(name)}" for name in changed) or "nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
