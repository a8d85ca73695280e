"""`legato bench memory` counts memory once it is written, and mapped files separately from private memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from legato.bench import memory
from legato.bench.jsonl import read_lines
from legato.bench.memory import memory_use
from legato.bench.records import RECORD_TYPES, MemoryRecord
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from tests.conftest import TinyCheckpoint

STAGES = ["program", "weights", "KV slots, all positions written", "all streams active, peak"]
MIB = 2**20


def test_memory_counts_as_private_only_after_it_is_written() -> None:
    before = memory_use("cpu").private
    allocated = torch.empty(64 * MIB, dtype=torch.uint8)
    assert memory_use("cpu").private - before < 8 * MIB
    allocated.fill_(1)
    assert 60 * MIB < memory_use("cpu").private - before < 80 * MIB


def test_mapped_file_pages_are_counted_separately(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(64 * MIB))
    before = memory_use("cpu")
    mapped = torch.from_file(str(file), shared=False, size=64 * MIB, dtype=torch.uint8)
    assert int(mapped.sum()) == 0
    after = memory_use("cpu")
    assert after.mapped - before.mapped > 60 * MIB
    assert after.private - before.private < 8 * MIB


def test_every_stage_is_recorded_and_slots_take_their_full_size(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    """Runs in a new process: this one may reuse memory that it freed earlier, and would allocate less."""
    file = tmp_path / "memory.jsonl"
    line = ["bench", "memory", str(tiny_checkpoint("tiny-custom-voice")), "--max-num-seqs", "2", "--frames", "2"]
    line += ["--max-seq-len", "40000", "--threads", "1", "--records", str(file)]
    program = "import sys; from legato.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_OK, done.stderr
    records = [record for record in read_lines(file, RECORD_TYPES) if isinstance(record, MemoryRecord)]
    assert [record.stage for record in records] == STAGES
    assert {(record.streams, record.kv_slots, record.max_seq_len) for record in records} == {(2, 3, 40_000)}
    _, weights, slots, active = (record.private_bytes for record in records)
    model = tiny_model_bytes_per_position(tiny_checkpoint)
    assert slots - weights > 0.95 * 3 * 40_000 * model > 8 * MIB
    assert active >= slots
    assert "2 streams, 3 KV slots of 40000 positions" in done.stdout.replace("\n", " ")


def test_unsupported_system_is_rejected(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "_SMAPS", Path("/nowhere/smaps"))
    assert main(["bench", "memory", str(tiny_checkpoint("tiny-custom-voice"))]) == EXIT_USAGE
    assert "/nowhere/smaps" in capsys.readouterr().err


def tiny_model_bytes_per_position(tiny_checkpoint: TinyCheckpoint) -> int:
    """KV cache bytes per position of all layers."""
    from legato.weights.loading import load_model

    model = load_model(tiny_checkpoint("tiny-custom-voice"))
    stack = model.config.talker.stack
    return 2 * stack.num_hidden_layers * stack.num_key_value_heads * stack.head_dim * model.cache_dtype.itemsize
