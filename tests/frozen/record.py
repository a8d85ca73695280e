"""Renews the recordings. Run `python -m tests.frozen.record`: it writes every file and names those that changed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from tests.frozen.codes import unsafe
from tests.frozen.recordings import FOLDER, RECORDINGS, agree, path_of, recorded, taken, text_of
from tests.frozen.subjects import Folder, Subjects, subjects, write_tiny


def folders(root: Path) -> Folder:
    """Tiny checkpoints in `root`, each written when it is first asked for."""

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            write_tiny(kind, path)
        return path

    return folder


def renew(found: Subjects) -> list[str]:
    """Write every file and return the names of those that changed. Differences within the tolerance are not written."""
    changed: list[str] = []
    for name in RECORDINGS:
        value = taken(name, found)
        if path_of(name).exists() and agree(recorded(name), value):
            continue
        path_of(name).write_text(text_of(value), encoding="utf-8")
        changed.append(name)
    return changed


def main() -> int:
    """Record all; refuse codes that another CPU may draw differently."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, subjects(folders(Path(root))) as found:
        close = unsafe(found)
        if close:
            print(f"not recorded: the codes of {', '.join(close)} depend on rounding; choose other seeds in codes.py")
            return 1
        changed = renew(found)
    print("\n".join(f"changed: {path_of(name)}" for name in changed) or "nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
