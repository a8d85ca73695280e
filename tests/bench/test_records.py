"""Records reject inconsistent values on construction and on reading; files of records round-trip."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.jsonl import SCHEMA, SCHEMA_1, read, read_lines, to_json, write_lines
from legato.bench.records import ALL_STAGES, ENGINE_STAGES, RECORD_TYPES, AudioMetrics, RequestRecord
from legato.errors import InputError
from tests.bench.sample_records import make_audio, make_record, make_request

MS = st.floats(0.0, 5000.0).map(lambda value: round(value, 3))
REQUESTS = {"request": RequestRecord}


@given(st.lists(MS, min_size=len(ALL_STAGES), max_size=len(ALL_STAGES)), MS)
def test_stages_and_unaccounted_time_add_up_to_the_start_of_playback(stages: list[float], left: float) -> None:
    made = make_audio(stages)
    assert sum(made.stages_ms.values()) + made.unaccounted_ms == pytest.approx(made.first_sound_ms)
    assert made.lm_ms + made.codec_ms == pytest.approx(made.first_packet_ms)
    longer = replace(made, first_sound_ms=made.first_sound_ms + left, unaccounted_ms=left)
    assert longer.unaccounted_ms == left
    with pytest.raises(ValueError, match="unaccounted_ms add up"):
        replace(made, first_sound_ms=made.first_sound_ms + left + 1.0, unaccounted_ms=left)


def test_stages_are_in_order_with_the_engine_stages_in_the_middle() -> None:
    assert ALL_STAGES[1:-2] == ENGINE_STAGES
    made = make_audio()
    with pytest.raises(ValueError, match="the stages are"):
        replace(made, stages_ms=dict(reversed(made.stages_ms.items())))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda made: replace(made, samples=made.samples + 1), "piece_samples"),
        (lambda made: replace(made, piece_samples=made.piece_samples[:-1]), "piece_samples"),
        (lambda made: replace(made, arrived_ms=tuple(reversed(made.arrived_ms))), "order of time"),
    ],
)
def test_inconsistent_audio_metrics_are_rejected(change: Callable[[AudioMetrics], AudioMetrics], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        change(make_audio())


def test_only_served_requests_have_audio() -> None:
    with pytest.raises(ValueError, match="does not go with"):
        replace(make_record(), outcome="refused")
    with pytest.raises(ValueError, match="does not go with"):
        replace(make_record(audio=None), outcome="eos")


def test_records_round_trip_through_a_file(tmp_path: Path) -> None:
    made = [
        make_record(make_request(0, cold=True)),
        make_record(make_request(1, transport="http")),
        make_record(make_request(2), audio=None),
    ]
    file = tmp_path / "records.jsonl"
    write_lines(file, (to_json("request", each) for each in made))
    assert len(file.read_text().splitlines()) == 3
    assert list(read_lines(file, REQUESTS)) == made


def changed(change: Callable[[dict[str, object]], object]) -> dict[str, object]:
    line: dict[str, object] = json.loads(json.dumps(to_json("request", make_record())))
    change(line)
    return line


def audio_of(change: Callable[[dict[str, object]], object]) -> Callable[[dict[str, object]], object]:
    """Apply `change` to the audio metrics of a line."""

    def change_audio(line: dict[str, object]) -> object:
        audio = line["audio"]
        assert isinstance(audio, dict)
        return change(audio)

    return change_audio


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (changed(lambda line: line.pop("machine")), "records.jsonl:1.machine is missing"),
        (changed(lambda line: line.update(more=1)), "records.jsonl:1.more is not a field"),
        (changed(lambda line: line.update(at_s="0")), "records.jsonl:1.at_s must be float, not '0'"),
        (changed(lambda line: line.update(at_s=True)), "records.jsonl:1.at_s must be float, not True"),
        (changed(lambda line: line.update(peak_bytes=1.0)), "records.jsonl:1.peak_bytes must be int"),
        (changed(lambda line: line.update(audio=[])), "records.jsonl:1.audio must be an object"),
        (changed(lambda line: line.update(audio=3)), "records.jsonl:1.audio must be an object"),
        (
            changed(audio_of(lambda audio: audio.update(arrived_ms={}))),
            "records.jsonl:1.audio.arrived_ms must be tuple",
        ),
        (changed(audio_of(lambda audio: audio.update(arrived_ms=[{}]))), r"arrived_ms\[0\] must be float"),
        (changed(lambda line: line.update(outcome="failed")), "does not go with audio"),
        (changed(lambda line: line.update(kind="other")), "unknown record kind 'other'; expected one of request"),
        (changed(lambda line: line.update(schema=SCHEMA + "0")), "is not a legato-bench-2 record"),
    ],
)
def test_invalid_line_is_rejected_with_its_place(line: dict[str, object], error: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    write_lines(file, [line])
    with pytest.raises(InputError, match=error):
        list(read_lines(file, REQUESTS))


def test_record_older_than_a_field_gets_its_default(tmp_path: Path) -> None:
    def remove(line: dict[str, object]) -> None:
        model = line["model"]
        assert isinstance(model, dict)
        model.pop("computed_by")

    file = tmp_path / "records.jsonl"
    write_lines(file, [changed(remove)])
    assert list(read_lines(file, REQUESTS)) == [make_record()]
    assert make_record().model.computed_by == ""


def test_invalid_json_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("{\n")
    with pytest.raises(InputError, match="is not JSON"):
        list(read_lines(file, REQUESTS))


def test_infinity_is_rejected_on_writing_and_reading(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_lines(tmp_path / "records.jsonl", [{"at_s": float("inf")}])
    line = {**json.loads(json.dumps(asdict(make_record()))), "at_s": float("inf")}
    with pytest.raises(InputError, match="at_s must be float"):
        read(RequestRecord, line, "line")


def test_records_of_schema_1_are_read_through_the_mapping_of_renamed_fields(tmp_path: Path) -> None:
    served, refused = changed(lambda _: None), json.loads(json.dumps(to_json("request", make_record(audio=None))))
    file = tmp_path / "records.jsonl"
    write_lines(file, [as_schema_1(served), as_schema_1(refused)])
    assert "sounds" in file.read_text()
    assert list(read_lines(file, REQUESTS)) == [make_record(), make_record(audio=None)]


def as_schema_1(line: dict[str, object]) -> dict[str, object]:
    """A request record as schema 1 wrote it: old field names, and a list of length 0 or 1 for optional audio."""
    old: dict[str, object] = json.loads(json.dumps(line))
    model, request, audio = old["model"], old.pop("request"), old.pop("audio")
    assert isinstance(model, dict)
    assert isinstance(request, dict)
    model["quantisation"] = model.pop("quantization")
    request["slots"], request["inside"] = request.pop("max_num_seqs"), request.pop("included")
    sounds = [] if audio is None else [audio]
    return {**old, "schema": SCHEMA_1, "asked": request, "settled": old.pop("synchronized"), "sounds": sounds}


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("file", sorted((DOCS / "bench").glob("*.jsonl")), ids=lambda file: file.name)
def test_kept_records_are_readable(file: Path) -> None:
    assert list(read_lines(file, RECORD_TYPES))
