"""Fixtures for all tests: `tiny_checkpoint(kind)` is the folder of a random-weight checkpoint.

Each kind is written once a session, when it is first asked for; nobody may write into it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from legato.models.synth import write_checkpoint

torch.set_num_threads(1)
"""Tiny tensors are slower in two threads than in one, and much slower where the cores are busy."""

TinyCheckpoint = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """`tiny_checkpoint("tiny-base")` and the other tiny kinds of `legato.models.synth.LIKES`. Do not write into it."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            write_checkpoint(kind, path)
        return path

    return folder
