"""`legato bench steps`: what a step must move and multiply is counted right, and every part is reported beside limits.

No figure of speed is judged here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from legato.bench import ceilings
from legato.bench.ceilings import MIB, Ceilings, MatrixRate, ReadRate, measure_ceilings
from legato.bench.jsonl import read_lines
from legato.bench.overhead import by_class
from legato.bench.report import KINDS
from legato.bench.steps_records import CeilingsRecord, Overhead, Step, StepRecord, TurnRecord
from legato.bench.work import codec_macs_per_frame, codec_work, predictor_work, stored_bytes, talker_work
from legato.cli.main import EXIT_OK, EXIT_REFUSED, main
from legato.config.checkpoint import read_model_config
from legato.models.codec.decoder import CodecDecoder
from legato.models.load import LoadedModel, load_model
from legato.models.synth import write_texts
from legato.models.synth_kinds import checkpoint_json
from legato.models.talker.state import TalkerCache
from tests.conftest import TinyCheckpoint

CEILINGS = Ceilings((ReadRate(1, 100.0), ReadRate(64, 20.0), ReadRate(512, 10.0)), (MatrixRate("float32", 7.0),))


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: TinyCheckpoint) -> LoadedModel:
    return load_model(tiny_checkpoint("tiny-custom-voice"), talker_dtype="float32", codec_dtype="float32", device="cpu")


def test_the_limit_is_the_rate_of_the_largest_set_that_the_step_fills() -> None:
    assert CEILINGS.bytes_s(MIB // 2) == 100.0
    assert CEILINGS.bytes_s(64 * MIB - 1) == 100.0
    assert CEILINGS.bytes_s(64 * MIB) == 20.0
    assert CEILINGS.bytes_s(10**12) == 10.0
    assert CEILINGS.flops_s("float32") == 7.0


def test_ceilings_are_measured_for_every_set_and_format() -> None:
    found = measure_ceilings(torch.device("cpu"), lambda: None, sets_mib=(1, 2), seconds=0.0)
    assert [each.set_mib for each in found.reads] == [1, 2]
    assert [each.dtype for each in found.matrix] == ["float32", "bfloat16", "int8"]
    assert all(each.bytes_s > 0 for each in found.reads)
    assert all(each.flops_s > 0 for each in found.matrix)


def test_a_hopelessly_slow_way_is_not_tried_at_larger_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def slow(size: int, device: torch.device) -> list[Callable[[], object]]:  # noqa: ARG001
        def multiply() -> None:
            tried.append(size)
            time.sleep(0.05)

        return [multiply]

    monkeypatch.setitem(ceilings._WAYS, "int8", slow)
    monkeypatch.setattr(ceilings, "SIZES", (64, 128))
    found = measure_ceilings(torch.device("cpu"), lambda: None, sets_mib=(1,), seconds=0.0)
    assert set(tried) == {64}
    assert found.flops_s("int8") > 2 * 64**3 / 0.05


def test_the_official_codec_needs_the_products_that_are_known(tmp_path: Path) -> None:
    """2.48 thousand million a frame, as counted from the official graph."""
    (tmp_path / "speech_tokenizer").mkdir()
    write_texts(checkpoint_json("0.6B-CustomVoice"), tmp_path, tmp_path / "speech_tokenizer")
    with torch.device("meta"):
        decoder = CodecDecoder(read_model_config(tmp_path).codec.decoder)
    assert codec_macs_per_frame(decoder) == pytest.approx(2.48e9, rel=0.001)


def test_talker_and_predictor_count_their_weights(tiny: LoadedModel) -> None:
    cache = TalkerCache.allocate(tiny.config.talker.stack, 2, 8, torch.float32)
    one, two = (talker_work(tiny, cache, rows=rows, context=4) for rows in (1, 2))
    assert two.flops == 2 * one.flops
    assert two.weight_bytes == one.weight_bytes
    assert two.state_bytes == 2 * one.state_bytes == 2 * 6 * cache.bytes_per_position
    layers = sum(each.numel() * 4 for each in tiny.talker.model.layers.parameters())
    assert layers < one.weight_bytes < sum(each.numel() * 4 for each in tiny.talker.parameters())
    frame, passes = predictor_work(tiny, rows=1), tiny.config.code_predictor.num_codebooks - 1
    assert frame.weight_bytes > passes * stored_bytes(tiny.code_predictor.model.layers)
    assert frame.set_bytes < frame.weight_bytes


def test_a_codec_window_reads_its_weights_once(tiny: LoadedModel) -> None:
    small, large = codec_work(tiny, rows=1, frames=1), codec_work(tiny, rows=2, frames=4)
    assert large.weight_bytes == small.weight_bytes
    assert large.flops == 8 * small.flops
    assert large.state_bytes == 2 * small.state_bytes


def test_weights_that_are_kept_out_of_sight_tell_their_own_size() -> None:
    class Packed(nn.Module):
        weight_bytes = 17

    assert stored_bytes(nn.Sequential(Packed(), nn.Linear(2, 3), nn.Embedding(9, 9))) == 17 + 4 * (6 + 3)


def test_operators_are_told_apart() -> None:
    took = {
        "aten.addmm": 1.0,
        "aten._weight_int4pack_mm_for_cpu": 2.0,
        "aten.mul": 4.0,
        "aten.copy_": 8.0,
        "aten.view": 16.0,
        "aten.silu": 32.0,
        "aten.index_select": 64.0,
    }
    assert by_class(took) == {"products": 3.0, "arithmetic": 36.0, "copies": 72.0}


def test_the_share_outside_kernels_is_what_is_no_kernel() -> None:
    assert Overhead(1, 12, 100.0, 70.0, 10.0, 5.0, 4.0, 11.0).share == pytest.approx(0.2)


def test_the_command_reports_every_part_beside_its_limits(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, page = tmp_path / "steps.jsonl", tmp_path / "steps.html"
    options = ["--batches", "2", "--windows", "1,2", "--context", "8", "--seconds", "0", "--threads", "1"]
    files = ["--records", str(records), "--html", str(page), "--json", str(tmp_path / "steps.json")]
    assert main(["bench", "steps", str(tiny_checkpoint("tiny-custom-voice")), *options, *files]) == EXIT_OK
    told = capsys.readouterr().out
    assert "of limit" in told
    assert "outside kernels" in told
    got = list(read_lines(records, KINDS))
    assert isinstance(got[0], CeilingsRecord)
    steps = [record.step for record in got if isinstance(record, StepRecord)]
    parts = ["talker", "code predictor", "draws", "codec", "codec"]
    assert [(step.part, step.rows) for step in steps] == [(part, rows) for rows in (2,) for part in parts]
    assert all(step.p10_ms <= step.median_ms <= step.p90_ms for step in steps)
    assert all((step.limit_ms > 0) == (step.part != "draws") for step in steps)
    turns = [record.turn for record in got if isinstance(record, TurnRecord)]
    assert [turn.rows for turn in turns] == [2]
    assert all("codec" in record.model.computed_by for record in got if isinstance(record, StepRecord | TurnRecord))
    for turn in turns:
        assert 0 < turn.products_ms < turn.turn_ms
        assert 0 < turn.share < 1
    assert "Where a turn" in page.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))["schema"]


def test_a_step_says_how_many_frames_it_makes_a_second() -> None:
    step = Step("codec", 2, 4, 0, 3, 40.0, 39.0, 41.0, 10, 1, 5, 8.0, 20.0)
    assert step.frames_s == pytest.approx(200.0)
    assert step.limit_ms == 20.0


def test_nonsense_batches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", "--batches", "0"]) == EXIT_REFUSED
    assert "--batches" in capsys.readouterr().err
