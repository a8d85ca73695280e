"""Limits of lengths, bodies and records: what is refused is neither kept nor sent back whole. Rows S5 and S6."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import httpx
import pytest

from legato.config.server import ServerConfig
from legato.server.bodies import JSON_BYTES
from legato.server.errors import MAX_MESSAGE
from tests.server.openai.test_voices import LOW
from tests.server.running import Running
from tests.server.test_auth import post

TEXT = "Some words."
LONG = "x" * 500_000
SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"


@pytest.fixture(scope="module")
def web(cloner: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cloner.url, timeout=60) as client:
        yield client


FIELDS = ["voice", "model", "language", "response_format", "task_type", "instructions", "ref_text", "stream_format"]


@pytest.mark.parametrize("field", [*FIELDS, "ref_audio", "input", "seed", "speed"])
def test_long_values_are_refused_with_a_short_message(web: httpx.Client, field: str) -> None:
    answers = [web.post(SPEECH, json={"input": TEXT, field: LONG}), web.post(SPEECH, data={"input": TEXT, field: LONG})]
    if field == "voice":
        answers.append(web.post(SPEECH, json={"input": TEXT, "voice": {"id": LONG}}))
    for answer in answers:
        assert answer.status_code in (400, 404, 422), answer.text[:200]
        assert len(answer.text) < MAX_MESSAGE + 200
        assert "xxx" * 100 not in answer.text


@pytest.mark.parametrize("fields", [{"name": LONG}, {"name": "a", "ref_text": LONG}, {"name": "a", LONG: "b"}])
def test_long_upload_fields_are_refused_or_dropped(web: httpx.Client, fields: dict[str, str]) -> None:
    answer = web.post(VOICES, data=fields, files={"audio_sample": LOW})
    assert len(answer.text) < MAX_MESSAGE + 200
    assert web.get(VOICES).content.count(b"x" * 1000) == 0
    web.delete(f"{VOICES}/a")


def test_long_paths_and_methods_are_not_sent_back_whole(web: httpx.Client) -> None:
    for answer in (
        web.get(f"/v1/{'x' * 20_000}"),
        web.delete(f"{VOICES}/{'x' * 20_000}"),
        web.get("/web/" + LONG[:9000]),
    ):
        assert answer.status_code == 404
        assert len(answer.text) < MAX_MESSAGE + 200


def test_refused_requests_leave_short_records(cloner: Running, web: httpx.Client) -> None:
    for _ in range(20):
        answer = web.post(SPEECH, json={"input": TEXT, "voice": "y" * 200, "ref_text": "z" * 3999})
        assert answer.status_code == 400
        record = cloner.state.records.find(answer.headers["x-request-id"])
        assert record is not None
        assert len(record.error_message) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (json.dumps({"input": TEXT, "x": "y" * JSON_BYTES}).encode(), "application/json", 413),
        (json.dumps({"input": "ref_audio" * JSON_BYTES}).encode(), "application/json", 413),
        (json.dumps({"ref_audio": "", "x": "y" * JSON_BYTES}).encode(), "application/json", 413),
        (b"a=b&" * (JSON_BYTES // 4 + 1), "application/x-www-form-urlencoded", 413),
        (b"a=b&" * 200, "application/x-www-form-urlencoded", 400),
        (b"[" + b"[]," * 100_000 + b"0]", "application/json", 400),
    ],
    ids=["unknown field", "text", "empty recording", "long form", "many fields", "many lists"],
)
def test_large_body_without_a_recording_is_refused(web: httpx.Client, content: bytes, kind: str, status: int) -> None:
    answer = web.post(SPEECH, content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text


def test_large_recording_is_accepted_and_too_large_one_refused(cloner: Running, web: httpx.Client) -> None:
    limit = cloner.state.config.reference_bytes
    padding = bytes(3 * 2**20)
    body = {"input": TEXT, "ref_audio": base64.b64encode(LOW + padding).decode(), "max_new_tokens": 1, "stream": False}
    assert web.post(SPEECH, json=body).status_code == 200
    for recording in (base64.b64encode(LOW + bytes(limit)).decode(), [base64.b64encode(LOW + bytes(limit)).decode()]):
        answer = web.post(SPEECH, json={**body, "ref_audio": recording})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    for url, name in ((SPEECH, "ref_audio"), (VOICES, "audio_sample")):
        answer = web.post(url, data={"input": TEXT, "name": "big"}, files={name: LOW + bytes(limit)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert web.get(VOICES).json()["uploaded_voices"] == []


@pytest.mark.parametrize("boundary", ["x" * 300, "", "ä", '"', "a b"])
def test_odd_multipart_boundaries_are_a_client_error(web: httpx.Client, boundary: str) -> None:
    kind = f"multipart/form-data; boundary={boundary}".encode("latin-1")
    answer = web.post(SPEECH, content=b"--x\r\n\r\n", headers=[(b"content-type", kind)])
    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/v1/models", "/v1/requests/req_0/playout", "/health", "/v1/audio/voices/x"])
def test_other_routes_have_a_small_limit(path: str) -> None:
    assert post(ServerConfig(), path, body=b"x" * 64 * 1024).status_code == 200
    assert post(ServerConfig(), path, body=b"x" * (64 * 1024 + 1)).status_code == 413
    assert post(ServerConfig(), path, content_length="100000").status_code == 413


def test_bodies_in_memory_are_bounded() -> None:
    config = ServerConfig(bodies_bytes=5000)
    assert post(config, SPEECH, body=b"x" * 5000).text == "5000"
    answer = post(config, SPEECH, body=b"x" * 5001)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"]
