"""Metrics, timing, request records and readiness of the server; clipping in its encoder."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields

import httpx
import numpy as np
import pytest

from legato.audio.formats import AudioFormat
from legato.client.http import Client
from legato.errors import NonFiniteError
from legato.server.app import create_app
from legato.server.encoding import StreamEncoder
from legato.server.request_records import RequestRecord, RequestRecords
from legato.types import Packet, StreamId
from tests.server.running import Running, metric


def settled_metrics(client: Client) -> str:
    """The metrics once no stream and no request is active; both end shortly after the last packet."""
    deadline_s = time.monotonic() + 10.0
    metrics = client.metrics()
    active = ("legato_streams_active", 'legato_requests_active{route="/v1/audio/speech"}')
    while any(metric(metrics, name) for name in active) and time.monotonic() < deadline_s:
        time.sleep(0.02)
        metrics = client.metrics()
    return metrics


def test_request_updates_metrics(speaker: Running) -> None:
    client = speaker.client()
    finished = 'legato_requests_total{finish_reason="max_frames",outcome="finished",route="/v1/audio/speech"}'
    streams = 'legato_streams_total{finish_reason="max_frames"}'
    before = client.metrics()
    with client.speak("Some words.", voice="ryan", max_new_tokens=3) as body:
        body.read()
        timing = body.headers["Server-Timing"]
    after = settled_metrics(client)
    for name, change in (
        (finished, 1),
        (streams, 1),
        ("legato_frames_total", 3),
        ("legato_first_packet_seconds_count", 1),
        ('legato_stage_seconds_count{stage="codec"}', 1),
        ("legato_real_time_factor_count", 1),
        ('legato_encode_seconds_count{format="pcm"}', 2),
    ):
        assert metric(after, name) - metric(before, name) == change, name
    assert metric(after, "legato_audio_seconds_total") - metric(before, "legato_audio_seconds_total") == pytest.approx(
        0.24
    )
    for name in ("legato_streams_active", "legato_streams_queued"):
        assert metric(after, name) == 0, name
    assert metric(after, 'legato_pool_slots{pool="codec",state="free"}') == 2
    assert "legato_packet_gap_seconds_bucket" in after
    assert "legato_underruns_total" in after
    assert [part.partition(";")[0] for part in timing.split(", ")] == [
        *("input-wait", "queue", "prefill", "first-code", "first-frame", "packet-fill", "codec")
    ]


def test_request_record_can_be_queried_afterwards(speaker: Running) -> None:
    client = speaker.client()
    with client.speak("Words.", voice="ryan", max_new_tokens=2, response_format="wav", sample_rate=16_000) as body:
        size = len(body.read())
    record = client.request(body.request_id)
    assert record["status"] == "finished"
    assert record["finish_reason"] == "max_frames"
    assert (record["frames"], record["samples"], record["bytes_sent"]) == (2, 2560, size)
    assert record["audio_seconds"] == pytest.approx(0.16)
    assert "Words" not in str(record)


def test_send_and_playback_times_have_their_own_metrics(speaker: Running) -> None:
    client = speaker.client()
    sent = 'legato_send_seconds_count{route="/v1/audio/speech"}'
    before = client.metrics()
    with client.speak("Words.", voice="ryan", max_new_tokens=2) as body:
        body.read()
    for late_ms in (120.0, 90.0):
        report = {"first_bytes_ms": 70.0, "first_sound_ms": late_ms}
        answer = httpx.post(f"{speaker.url}/v1/requests/{body.request_id}/playout", json=report, timeout=60)
        assert answer.status_code == 204
    after = client.metrics()
    for name, change in (
        (sent, 1),
        ("legato_first_sound_seconds_count", 1),
        ("legato_first_sound_seconds_sum", 0.12),
        ("legato_playout_seconds_sum", 0.05),
    ):
        assert metric(after, name) - metric(before, name) == pytest.approx(change), name


def test_only_the_latest_records_are_stored() -> None:
    records = RequestRecords(2)
    for name in "abc":
        records.add(RequestRecord(id=name, route="/"))
    assert records.find("a") is None
    assert records.find("c") is not None


def test_not_ready_before_warm_up_and_while_draining(speaker: Running) -> None:
    app = create_app(speaker.tts)

    async def request_all() -> list[tuple[int, int, int]]:
        transport = httpx.ASGITransport(app=app)
        statuses = []
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as web:
            for warm, draining in ((False, False), (True, False), (True, True)):
                app.state.legato.readiness.warm, app.state.legato.drain.requested = warm, draining
                response = await web.post(
                    "/v1/audio/speech", json={"input": "Hi.", "voice": "ryan", "max_new_tokens": 1}
                )
                statuses.append(
                    (
                        (await web.get("/ready")).status_code,
                        (await web.get("/health")).status_code,
                        response.status_code,
                    )
                )
        return statuses

    assert asyncio.run(request_all()) == [(503, 200, 503), (200, 200, 200), (503, 200, 503)]
    app.state.legato.bridge.close()


def packet(samples: list[float]) -> Packet:
    return Packet(StreamId(0), 0, 1, 24_000, np.array(samples, dtype="<f4").tobytes(), last=True)


def test_loud_samples_are_clipped_and_non_finite_samples_rejected() -> None:
    encoding = StreamEncoder(AudioFormat.PCM, 24_000, 24_000, patchable=False)
    assert np.frombuffer(encoding.encode(packet([1.0, 1.2, -1.3])), "<i2").tolist() == [32767, 32767, -32768]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(NonFiniteError):
            StreamEncoder(AudioFormat.PCM, 24_000, 24_000, patchable=False).encode(packet([bad]))


def test_every_limit_of_server_and_engine_is_shown(speaker: Running) -> None:
    metrics = speaker.client().metrics()
    for part in (speaker.state.config, speaker.tts.config):
        for setting in fields(part):
            value = getattr(part, setting.name)
            if setting.name.endswith("port") or isinstance(value, bool) or not isinstance(value, int | float):
                assert f'legato_limit{{limit="{setting.name}"}}' not in metrics
            else:
                assert metric(metrics, f'legato_limit{{limit="{setting.name}"}}') == value, setting.name
