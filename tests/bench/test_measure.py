"""A tiny model measured for real over all three ways. No figure of speed is judged; that they hold together is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from legato.bench.latency import Repetitions, measure_latency
from legato.bench.load import Clock, measure_load
from legato.bench.observe import Setting, Subject
from legato.bench.records import ALL_STAGES, RequestRecord
from legato.bench.serving import served
from legato.bench.summary import summaries
from legato.bench.ways import InProcess, OverHttp, OverSocket, Way
from legato.bench.workload import Workload
from legato.errors import InputError

FRAMES = 6
WORKLOAD = Workload(packet_frames=(1, 2), max_frames=FRAMES)
WAYS = ("in-process", "http", "websocket")


@pytest.fixture(scope="module")
def ways(tiny_subject: Subject) -> Iterator[dict[str, Way]]:
    with served(tiny_subject.tts) as server:
        found: tuple[Way, ...] = (
            InProcess(tiny_subject.tts),
            OverHttp(server.url, server.account),
            OverSocket(server.url, server.account),
        )
        yield {way.name: way for way in found}


@pytest.fixture(scope="module")
def latency(tiny_subject: Subject, ways: dict[str, Way]) -> list[RequestRecord]:
    return list(measure_latency(tiny_subject, list(ways.values()), WORKLOAD, Repetitions(2, warm_up=1)))


def test_each_way_is_asked_the_same_and_the_first_request_is_cold(latency: list[RequestRecord]) -> None:
    told = [(record.asked.transport, record.asked.number, record.asked.cold) for record in latency]
    assert told == [("in-process", 0, True), *((way, number, False) for way in WAYS for number in (0, 1))]
    assert {record.outcome for record in latency} == {"max_frames"}
    for number in (0, 1):
        asked = [record.asked for record in latency if record.asked.number == number]
        assert len({(each.seed, each.input_characters, each.layout, each.packet_frames) for each in asked}) == 1
    tokens = {(record.asked.number, record.sounds[0].input_tokens) for record in latency}
    assert len(tokens) == 2
    assert all(count > 0 for _, count in tokens)


def test_stages_lie_end_to_end_and_leave_nothing(latency: list[RequestRecord]) -> None:
    for record in latency:
        (sound,) = record.sounds
        assert tuple(sound.stages_ms) == ALL_STAGES
        assert all(spent >= 0 for spent in sound.stages_ms.values())
        assert abs(sound.unaccounted_ms) <= 0.01
        assert (sound.frames, sound.samples) == (FRAMES, FRAMES * record.model.frame_samples)
        assert sound.first_packet_ms < sound.first_sound_ms <= sound.first_audible_ms
        assert sound.arrived_ms[0] == pytest.approx(sound.first_sound_ms)
        assert all(earlier <= later for earlier, later in pairwise(sound.arrived_ms))
        assert sound.real_time_factor > 0
        assert record.batch_rows == 1.0


def test_a_listener_who_collects_first_waits_for_it_in_the_stage_playout(
    tiny_subject: Subject, ways: dict[str, Way]
) -> None:
    workload = replace(WORKLOAD, start_ms=200.0)
    *_, record = measure_latency(tiny_subject, [ways["websocket"]], workload, Repetitions(1))
    (sound,) = record.sounds
    assert sound.stages_ms["playout"] == pytest.approx(sound.first_sound_ms - sound.arrived_ms[0], abs=0.01)
    assert sound.stages_ms["playout"] > 0
    assert abs(sound.unaccounted_ms) <= 0.01


@pytest.mark.parametrize("name", ["in-process", "websocket"])
def test_text_at_a_pace_is_input_wait_and_no_model_time(name: str, tiny_subject: Subject, ways: dict[str, Way]) -> None:
    """A word can be spoken once it is over: nine pieces at twenty a second."""
    workload = replace(WORKLOAD, texts=("Donaudampfschifffahrtsgesellschaft fahren.",), text_tokens_s=20.0)
    *_, record = measure_latency(tiny_subject, [ways[name]], workload, Repetitions(1))
    (sound,) = record.sounds
    assert record.asked.text_tokens_s == 20.0
    assert sound.stages_ms["input wait"] > 300


def test_http_takes_whole_texts_alone(ways: dict[str, Way]) -> None:
    with pytest.raises(InputError, match="whole text"):
        ways["http"].speak(replace(WORKLOAD, text_tokens_s=10.0).utterance(0))


@pytest.mark.parametrize("name", WAYS)
def test_a_load_counts_those_who_found_no_room(name: str, tiny_subject: Subject, ways: dict[str, Way]) -> None:
    """Two slots and one waiting place for six clients, who all ask at once; nobody else of them is lost."""
    settings = [Setting("closed", concurrency=2), Setting("open", rate_hz=1000.0)]
    workload = replace(WORKLOAD, max_frames=20)
    records = list(measure_load(tiny_subject, ways[name], workload, settings, requests=6, clock=Clock()))
    two, crowd = summaries(records)
    assert (two.asked, two.spoken, two.refused) == (6, 6, 0)
    assert 1.0 <= two.batch_rows <= 2.0
    assert (crowd.asked, crowd.failed) == (6, 0)
    assert crowd.spoken >= 3
    assert crowd.refused == 6 - crowd.spoken
    assert crowd.refused > 0
    assert {record.error_code for record in records if not record.sounds} == {"queue_full"}
    assert two.audio_s_per_s > 0
    assert two.peak_bytes > 0
