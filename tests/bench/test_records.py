"""Records reject inconsistent values on construction and on reading; files of records round-trip."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.jsonl import (
    SCHEMA,
    SCHEMA_1,
    SCHEMA_1_FIELDS,
    SCHEMA_2,
    SCHEMA_2_FIELDS,
    FieldNames,
    read,
    read_lines,
    to_json,
    write_lines,
)
from legato.bench.records import ALL_STAGES, ENGINE_STAGES, RECORD_TYPES, AudioMetrics, RequestRecord
from legato.errors import InputError
from tests.bench.sample_records import make_audio, make_record, make_request

MS = st.floats(0.0, 5000.0).map(lambda value: round(value, 3))
REQUESTS = {"request": RequestRecord}


@given(st.lists(MS, min_size=len(ALL_STAGES), max_size=len(ALL_STAGES)), MS)
def test_stages_and_unaccounted_time_add_up_to_the_start_of_playback(stages: list[float], unaccounted: float) -> None:
    audio = make_audio(stages)
    assert sum(audio.stages_ms.values()) + audio.unaccounted_ms == pytest.approx(audio.first_sound_ms)
    assert audio.lm_ms + audio.codec_ms == pytest.approx(audio.first_packet_ms)
    longer = replace(audio, first_sound_ms=audio.first_sound_ms + unaccounted, unaccounted_ms=unaccounted)
    assert longer.unaccounted_ms == unaccounted
    with pytest.raises(ValueError, match="unaccounted_ms add up"):
        replace(audio, first_sound_ms=audio.first_sound_ms + unaccounted + 1.0, unaccounted_ms=unaccounted)


def test_stages_are_in_order_with_the_engine_stages_in_the_middle() -> None:
    assert ALL_STAGES[1:-2] == ENGINE_STAGES
    audio = make_audio()
    with pytest.raises(ValueError, match="the stages are"):
        replace(audio, stages_ms=dict(reversed(audio.stages_ms.items())))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda audio: replace(audio, samples=audio.samples + 1), "piece_samples"),
        (lambda audio: replace(audio, piece_samples=audio.piece_samples[:-1]), "piece_samples"),
        (lambda audio: replace(audio, arrived_ms=tuple(reversed(audio.arrived_ms))), "order of time"),
    ],
)
def test_inconsistent_audio_metrics_are_rejected(change: Callable[[AudioMetrics], AudioMetrics], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        change(make_audio())


def test_only_served_requests_have_audio() -> None:
    with pytest.raises(ValueError, match="'refused' is inconsistent with audio"):
        replace(make_record(), outcome="refused")
    with pytest.raises(ValueError, match="'eos' is inconsistent with no audio"):
        replace(make_record(audio=None), outcome="eos")


def test_records_round_trip_through_a_file(tmp_path: Path) -> None:
    records = [
        make_record(make_request(0, cold=True)),
        make_record(make_request(1, transport="http")),
        make_record(make_request(2), audio=None),
    ]
    file = tmp_path / "records.jsonl"
    write_lines(file, (to_json("request", each) for each in records))
    assert len(file.read_text().splitlines()) == 3
    assert list(read_lines(file, REQUESTS)) == records


def changed(change: Callable[[dict[str, object]], object]) -> dict[str, object]:
    """The JSON of a request record after `change` was applied to it."""
    line: dict[str, object] = json.loads(json.dumps(to_json("request", make_record())))
    change(line)
    return line


def change_audio(change: Callable[[dict[str, object]], object]) -> Callable[[dict[str, object]], object]:
    """A function that applies `change` to the audio metrics of a line."""

    def apply(line: dict[str, object]) -> object:
        audio = line["audio"]
        assert isinstance(audio, dict)
        return change(audio)

    return apply


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (changed(lambda line: line.pop("machine")), "records.jsonl:1.machine is missing"),
        (changed(lambda line: line.update(more=1)), "records.jsonl:1.more is not a field"),
        (changed(lambda line: line.update(at_s="0")), "records.jsonl:1.at_s must be float, not '0'"),
        (changed(lambda line: line.update(at_s=True)), "records.jsonl:1.at_s must be float, not True"),
        (changed(lambda line: line.update(peak_bytes=1.0)), "records.jsonl:1.peak_bytes must be int"),
        (changed(lambda line: line.update(audio=[])), "records.jsonl:1.audio must be an object"),
        (changed(lambda line: line.update(audio=[], schema=SCHEMA_2)), "records.jsonl:1.audio must be an object"),
        (changed(lambda line: line.update(audio=3)), "records.jsonl:1.audio must be an object"),
        (
            changed(change_audio(lambda audio: audio.update(arrived_ms={}))),
            "records.jsonl:1.audio.arrived_ms must be tuple",
        ),
        (changed(change_audio(lambda audio: audio.update(arrived_ms=[{}]))), r"arrived_ms\[0\] must be float"),
        (changed(lambda line: line.update(outcome="failed")), "is inconsistent with audio"),
        (changed(lambda line: line.update(kind="other")), "unknown record kind 'other'; expected one of request"),
        (changed(lambda line: line.update(schema=SCHEMA + "0")), "is not a legato-bench-3 record"),
    ],
)
def test_error_of_an_invalid_line_has_its_location(line: dict[str, object], error: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    write_lines(file, [line])
    with pytest.raises(InputError, match=error):
        list(read_lines(file, REQUESTS))


def test_missing_newer_field_takes_its_default(tmp_path: Path) -> None:
    def remove(line: dict[str, object]) -> None:
        model = line["model"]
        assert isinstance(model, dict)
        model.pop("backend")

    file = tmp_path / "records.jsonl"
    write_lines(file, [changed(remove)])
    assert list(read_lines(file, REQUESTS)) == [make_record()]
    assert make_record().model.backend == ""


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


RECORD_PARTS = {"model": "ModelInfo", "request": "RequestInfo", "audio": "AudioMetrics"}


def in_old_schema(line: dict[str, object], schema: str, renamed: FieldNames) -> dict[str, object]:
    """A request record with the field names of an older schema."""

    def old_names(kind: str, values: object) -> object:
        if not isinstance(values, dict):
            return values
        old = {new: old for old, new in renamed.get(kind, {}).items()}
        return {old.get(name, name): item for name, item in values.items()}

    parts = {name: old_names(RECORD_PARTS[name], item) if name in RECORD_PARTS else item for name, item in line.items()}
    if schema == SCHEMA_1:
        parts["audio"] = [] if parts["audio"] is None else [parts["audio"]]
    value = old_names("RequestRecord", {**parts, "schema": schema})
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("schema", "renamed", "old_field"),
    [(SCHEMA_1, SCHEMA_1_FIELDS, "sounds"), (SCHEMA_2, SCHEMA_2_FIELDS, "later_text_wait_ms")],
)
def test_records_of_older_schemas_are_read_with_renamed_fields(
    schema: str, renamed: FieldNames, old_field: str, tmp_path: Path
) -> None:
    served, refused = changed(lambda _: None), json.loads(json.dumps(to_json("request", make_record(audio=None))))
    file = tmp_path / "records.jsonl"
    write_lines(file, [in_old_schema(line, schema, renamed) for line in (served, refused)])
    assert f'"{old_field}"' in file.read_text()
    assert list(read_lines(file, REQUESTS)) == [make_record(), make_record(audio=None)]


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("file", sorted((DOCS / "bench").glob("*.jsonl")), ids=lambda file: file.name)
def test_committed_records_are_readable(file: Path) -> None:
    assert list(read_lines(file, RECORD_TYPES))
