"""`legato bench memory` sees what is allocated: slots count once written to, and a mapped file is not private."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from legato.bench import memory
from legato.bench.jsonl import read_lines
from legato.bench.memory import MemoryRecord, use_on
from legato.bench.report import KINDS
from legato.cli.main import EXIT_OK, EXIT_REFUSED, main
from tests.conftest import TinyCheckpoint

STAGES = ["program", "weights", "slots, every position written", "all streams speaking, the most"]
MIB = 2**20


def test_written_memory_is_private_and_promised_memory_is_not() -> None:
    before = use_on("cpu").private
    promised = torch.empty(64 * MIB, dtype=torch.uint8)
    assert use_on("cpu").private - before < 8 * MIB
    promised.fill_(1)
    assert 60 * MIB < use_on("cpu").private - before < 80 * MIB


def test_pages_of_a_file_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(64 * MIB))
    before = use_on("cpu")
    mapped = torch.from_file(str(file), shared=False, size=64 * MIB, dtype=torch.uint8)
    assert int(mapped.sum()) == 0
    after = use_on("cpu")
    assert after.mapped - before.mapped > 60 * MIB
    assert after.private - before.private < 8 * MIB


def test_every_stage_is_recorded_and_slots_take_what_they_must(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    """In a process of its own: one that has freed much before takes from that, and asks the system for less."""
    file = tmp_path / "memory.jsonl"
    line = ["bench", "memory", str(tiny_checkpoint("tiny-custom-voice")), "--streams", "2", "--frames", "2"]
    line += ["--positions", "40000", "--threads", "1", "--records", str(file)]
    program = "import sys; from legato.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_OK, done.stderr
    records = [record for record in read_lines(file, KINDS) if isinstance(record, MemoryRecord)]
    assert [record.stage for record in records] == STAGES
    assert {(record.streams, record.slots, record.positions) for record in records} == {(2, 3, 40_000)}
    _, weights, slots, speaking = (record.private_bytes for record in records)
    model = tiny_model_bytes_per_position(tiny_checkpoint)
    assert slots - weights > 0.95 * 3 * 40_000 * model > 8 * MIB
    assert speaking >= slots
    assert "2 streams, 3 slots of 40000 positions" in done.stdout.replace("\n", " ")


def test_a_system_that_does_not_tell_is_refused(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "_SMAPS", Path("/nowhere/smaps"))
    assert main(["bench", "memory", str(tiny_checkpoint("tiny-custom-voice"))]) == EXIT_REFUSED
    assert "/nowhere/smaps" in capsys.readouterr().err


def tiny_model_bytes_per_position(tiny_checkpoint: TinyCheckpoint) -> int:
    """Keys and values of all layers."""
    from legato.models.load import load_model

    model = load_model(tiny_checkpoint("tiny-custom-voice"))
    stack = model.config.talker.stack
    return 2 * stack.num_hidden_layers * stack.num_key_value_heads * stack.head_dim * model.cache_dtype.itemsize
