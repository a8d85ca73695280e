"""Modules on the meta device: they have shapes only, and creating them does not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from legato.weights.meta_init import empty_modules
from tests.conftest import TinyCheckpoint

LOADED = """
import sys
from pathlib import Path
from legato.weights.loading import load_model
load_model(Path(sys.argv[1]))
print("torch._dynamo" in sys.modules)
"""


def test_parameters_are_on_the_meta_device() -> None:
    with empty_modules():
        made = [nn.Linear(3, 2), nn.Embedding(5, 4), nn.LayerNorm(6), nn.Conv1d(2, 3, 7)]
    shapes = [[tuple(each.shape) for each in module.parameters()] for module in made]
    assert shapes == [[(2, 3), (2,)], [(5, 4)], [(6,), (6,)], [(3, 2, 7), (3,)]]
    assert all(each.is_meta for module in made for each in module.parameters())


def test_modules_created_outside_are_initialized() -> None:
    with empty_modules():
        pass
    assert nn.LayerNorm(4).weight.tolist() == [1.0] * 4
    assert torch.equal(nn.init.zeros_(torch.ones(2)), torch.zeros(2))


@pytest.mark.parametrize("kind", ["tiny-custom-voice", "tiny-base"])
def test_loading_does_not_import_torchs_compiler(kind: str, tiny_checkpoint: TinyCheckpoint) -> None:
    """The import would take more than half of a cold start."""
    command = [sys.executable, "-c", LOADED, str(tiny_checkpoint(kind))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.strip() == "False"
