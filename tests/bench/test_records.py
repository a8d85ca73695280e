"""A record that contradicts itself is refused, whether it is made or read; a file of records is read back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.bench.jsonl import SCHEMA, read, read_lines, to_json, write_lines
from legato.bench.records import ALL_STAGES, ENGINE_STAGES, RequestRecord, Sound
from legato.errors import InputError
from tests.bench.made import asked, record, sound

MS = st.floats(0.0, 5000.0).map(lambda value: round(value, 3))
KINDS = {"request": RequestRecord}


@given(st.lists(MS, min_size=len(ALL_STAGES), max_size=len(ALL_STAGES)), MS)
def test_stages_and_their_remainder_sum_to_the_first_sound(stages: list[float], left: float) -> None:
    made = sound(stages)
    assert sum(made.stages_ms.values()) + made.unaccounted_ms == pytest.approx(made.first_sound_ms)
    assert made.lm_ms + made.codec_ms == pytest.approx(made.first_packet_ms)
    longer = replace(made, first_sound_ms=made.first_sound_ms + left, unaccounted_ms=left)
    assert longer.unaccounted_ms == left
    with pytest.raises(ValueError, match="unaccounted_ms make"):
        replace(made, first_sound_ms=made.first_sound_ms + left + 1.0, unaccounted_ms=left)


def test_the_stages_of_the_engine_stand_in_their_order_between_those_of_the_client() -> None:
    assert ALL_STAGES[1:-2] == ENGINE_STAGES
    made = sound()
    with pytest.raises(ValueError, match="the stages are"):
        replace(made, stages_ms=dict(reversed(made.stages_ms.items())))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda made: replace(made, samples=made.samples + 1), "pieces"),
        (lambda made: replace(made, piece_samples=made.piece_samples[:-1]), "pieces"),
        (lambda made: replace(made, arrived_ms=tuple(reversed(made.arrived_ms))), "back in time"),
    ],
)
def test_sound_that_contradicts_itself_is_refused(wrong: Callable[[Sound], Sound], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        wrong(sound())


def test_what_was_refused_has_no_sound_and_what_was_spoken_has_one() -> None:
    with pytest.raises(ValueError, match="does not go with"):
        replace(record(), outcome="refused")
    with pytest.raises(ValueError, match="does not go with"):
        replace(record(sounds=()), outcome="eos")


def test_a_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = [record(asked(0, cold=True)), record(asked(1, transport="http")), record(asked(2), sounds=())]
    file = tmp_path / "records.jsonl"
    write_lines(file, (to_json("request", each) for each in made))
    assert len(file.read_text().splitlines()) == 3
    assert list(read_lines(file, KINDS)) == made


def changed(change: Callable[[dict[str, object]], object]) -> dict[str, object]:
    line: dict[str, object] = json.loads(json.dumps(to_json("request", record())))
    change(line)
    return line


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (changed(lambda line: line.pop("machine")), "records.jsonl:1.machine is missing"),
        (changed(lambda line: line.update(more=1)), "records.jsonl:1.more is no field"),
        (changed(lambda line: line.update(at_s="0")), "records.jsonl:1.at_s must be float, not '0'"),
        (changed(lambda line: line.update(at_s=True)), "records.jsonl:1.at_s must be float, not True"),
        (changed(lambda line: line.update(peak_bytes=1.0)), "records.jsonl:1.peak_bytes must be int"),
        (changed(lambda line: line.update(sounds={})), "records.jsonl:1.sounds must be tuple"),
        (changed(lambda line: line.update(sounds=[3])), r"records.jsonl:1.sounds\[0\] must be an object"),
        (changed(lambda line: line.update(outcome="failed")), "does not go with 1 sounds"),
        (changed(lambda line: line.update(kind="other")), "kind 'other' are not read here, only request"),
        (changed(lambda line: line.update(schema=SCHEMA + "0")), "no record of"),
    ],
)
def test_a_wrong_line_is_refused_by_its_place(line: dict[str, object], told: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    write_lines(file, [line])
    with pytest.raises(InputError, match=told):
        list(read_lines(file, KINDS))


def test_a_line_that_is_older_than_a_field_is_read_and_says_nothing_of_it(tmp_path: Path) -> None:
    def forget(line: dict[str, object]) -> None:
        model = line["model"]
        assert isinstance(model, dict)
        model.pop("computed_by")

    file = tmp_path / "records.jsonl"
    write_lines(file, [changed(forget)])
    assert list(read_lines(file, KINDS)) == [record()]
    assert record().model.computed_by == ""


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("{\n")
    with pytest.raises(InputError, match="is no JSON"):
        list(read_lines(file, KINDS))


def test_infinity_is_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_lines(tmp_path / "records.jsonl", [{"at_s": float("inf")}])
    line = {**json.loads(json.dumps(asdict(record()))), "at_s": float("inf")}
    with pytest.raises(InputError, match="at_s must be float"):
        read(RequestRecord, line, "line")
