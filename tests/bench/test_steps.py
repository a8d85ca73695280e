"""`legato bench steps`: bytes and FLOPs are counted correctly, and every part is reported with its limits.

Speed is not judged here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from legato.backends.base import Backend
from legato.backends.select import load_backend
from legato.bench import roofline
from legato.bench.jsonl import read_lines
from legato.bench.overhead import by_class
from legato.bench.records import (
    MIB,
    RECORD_TYPES,
    EngineStepRecord,
    EngineStepTiming,
    GemmThroughput,
    ReadBandwidth,
    Roofline,
    RooflineRecord,
    StepRecord,
    StepTiming,
)
from legato.bench.roofline import (
    codec_cost,
    codec_macs_per_frame,
    measure_roofline,
    predictor_cost,
    stored_bytes,
    talker_cost,
)
from legato.cli.main import EXIT_OK, EXIT_USAGE, main
from legato.config.checkpoint import read_model_config
from legato.models.codec.decoder import CodecDecoder
from legato.models.talker.state import TalkerCache
from legato.weights.random_checkpoint import write_json_files
from legato.weights.random_configs import checkpoint_json
from tests.conftest import TinyCheckpoint

ROOFLINE = Roofline(
    (ReadBandwidth(1, 100.0), ReadBandwidth(64, 20.0), ReadBandwidth(512, 10.0)), (GemmThroughput("float32", 7.0),)
)


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: TinyCheckpoint) -> Backend:
    return load_backend(tiny_checkpoint("tiny-custom-voice"))


def test_bandwidth_is_that_of_the_largest_measured_set_within_the_working_set() -> None:
    assert ROOFLINE.bytes_per_s(MIB // 2) == 100.0
    assert ROOFLINE.bytes_per_s(64 * MIB - 1) == 100.0
    assert ROOFLINE.bytes_per_s(64 * MIB) == 20.0
    assert ROOFLINE.bytes_per_s(10**12) == 10.0
    assert ROOFLINE.flops_per_s("float32") == 7.0


def test_roofline_is_measured_for_every_working_set_and_dtype() -> None:
    found = measure_roofline(torch.device("cpu"), lambda: None, working_sets_mib=(1, 2), seconds=0.0)
    assert [each.working_set_mib for each in found.reads] == [1, 2]
    assert [each.dtype for each in found.gemm] == ["float32", "bfloat16", "int8"]
    assert all(each.bytes_per_s > 0 for each in found.reads)
    assert all(each.flops_per_s > 0 for each in found.gemm)


def test_slow_gemm_is_skipped_at_larger_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def slow(size: int, device: torch.device) -> list[Callable[[], object]]:  # noqa: ARG001
        def multiply() -> None:
            tried.append(size)
            time.sleep(0.05)

        return [multiply]

    monkeypatch.setitem(roofline._GEMMS, "int8", slow)
    monkeypatch.setattr(roofline, "GEMM_SIZES", (64, 128))
    found = measure_roofline(torch.device("cpu"), lambda: None, working_sets_mib=(1,), seconds=0.0)
    assert set(tried) == {64}
    assert found.flops_per_s("int8") > 2 * 64**3 / 0.05


def test_official_codec_has_the_known_macs_per_frame(tmp_path: Path) -> None:
    """2.48 GMAC per frame, counted from the official graph."""
    (tmp_path / "speech_tokenizer").mkdir()
    write_json_files(checkpoint_json("0.6B-CustomVoice"), tmp_path, tmp_path / "speech_tokenizer")
    with torch.device("meta"):
        decoder = CodecDecoder(read_model_config(tmp_path).codec.decoder)
    assert codec_macs_per_frame(decoder) == pytest.approx(2.48e9, rel=0.001)


def test_talker_and_predictor_count_their_weights(tiny: Backend) -> None:
    cache = TalkerCache.allocate(tiny.model.config.talker.stack, 2, 8, torch.float32)
    one, two = (talker_cost(tiny, cache, rows=rows, context=4) for rows in (1, 2))
    assert two.flops == 2 * one.flops
    assert two.weight_bytes == one.weight_bytes
    assert two.state_bytes == 2 * one.state_bytes == 2 * 6 * cache.bytes_per_position
    layers = sum(each.numel() * 4 for each in tiny.talker.model.layers.parameters())
    assert layers < one.weight_bytes < sum(each.numel() * 4 for each in tiny.talker.parameters())
    frame, passes = predictor_cost(tiny, rows=1), tiny.model.config.code_predictor.num_codebooks - 1
    assert frame.weight_bytes > passes * stored_bytes(tiny.code_predictor.model.layers)
    assert frame.working_set_bytes < frame.weight_bytes


def test_a_codec_window_reads_its_weights_once(tiny: Backend) -> None:
    small, large = codec_cost(tiny, rows=1, frames=1), codec_cost(tiny, rows=2, frames=4)
    assert large.weight_bytes == small.weight_bytes
    assert large.flops == 8 * small.flops
    assert large.state_bytes == 2 * small.state_bytes


def test_packed_weights_report_their_own_size() -> None:
    class Packed(nn.Module):
        weight_bytes = 17

    assert stored_bytes(nn.Sequential(Packed(), nn.Linear(2, 3), nn.Embedding(9, 9))) == 17 + 4 * (6 + 3)


def test_operators_are_classified() -> None:
    took = {
        "aten.addmm": 1.0,
        "aten._weight_int4pack_mm_for_cpu": 2.0,
        "aten.mul": 4.0,
        "aten.copy_": 8.0,
        "aten.view": 16.0,
        "aten.silu": 32.0,
        "aten.index_select": 64.0,
    }
    assert by_class(took) == {"gemm": 3.0, "other kernels": 36.0, "copies": 72.0}


def test_overhead_is_the_fraction_outside_kernels() -> None:
    assert EngineStepTiming(
        rows=1,
        steps=12,
        step_ms=100.0,
        gemm_ms=70.0,
        other_kernels_ms=10.0,
        copies_ms=5.0,
        sampling_ms=4.0,
        host_ms=11.0,
    ).overhead == pytest.approx(0.2)


def test_steps_command_reports_every_part_with_its_limits(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, page = tmp_path / "steps.jsonl", tmp_path / "steps.html"
    options = ["--batches", "2", "--windows", "1,2", "--context", "8", "--seconds", "0", "--threads", "1"]
    files = ["--records", str(records), "--html", str(page), "--json", str(tmp_path / "steps.json")]
    assert main(["bench", "steps", str(tiny_checkpoint("tiny-custom-voice")), *options, *files]) == EXIT_OK
    output = capsys.readouterr().out
    assert "of limit" in output
    assert "outside kernels" in output
    got = list(read_lines(records, RECORD_TYPES))
    assert isinstance(got[0], RooflineRecord)
    steps = [record.step for record in got if isinstance(record, StepRecord)]
    parts = ["talker", "code predictor", "sampling", "codec", "codec"]
    assert [(step.part, step.rows) for step in steps] == [(part, rows) for rows in (2,) for part in parts]
    assert all(step.p10_ms <= step.median_ms <= step.p90_ms for step in steps)
    assert all((step.limit_ms > 0) == (step.part != "sampling") for step in steps)
    engine_steps = [record.engine_step for record in got if isinstance(record, EngineStepRecord)]
    assert [engine_step.rows for engine_step in engine_steps] == [2]
    assert all("codec" in record.model.backend for record in got if isinstance(record, StepRecord | EngineStepRecord))
    for engine_step in engine_steps:
        assert 0 < engine_step.gemm_ms < engine_step.step_ms
        assert 0 < engine_step.overhead < 1
    assert "Engine step of" in page.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))["schema"]


def test_step_timing_gives_frames_per_second_and_limit() -> None:
    step = StepTiming(
        part="codec",
        rows=2,
        window_frames=4,
        context_positions=0,
        repetitions=3,
        median_ms=40.0,
        p10_ms=39.0,
        p90_ms=41.0,
        weight_bytes=10,
        state_bytes=1,
        flops=5,
        memory_limit_ms=8.0,
        compute_limit_ms=20.0,
    )
    assert step.frames_per_s == pytest.approx(200.0)
    assert step.limit_ms == 20.0


def test_invalid_batches_option_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", "--batches", "0"]) == EXIT_USAGE
    assert "--batches" in capsys.readouterr().err
