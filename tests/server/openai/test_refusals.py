"""Invalid requests are rejected in OpenAI's error format, with code and field, before any computation."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.running import Running, slots_free, wait_for

TEXT = "Some words."


@pytest.fixture(scope="module")
def web(speaker: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaker.url, timeout=60) as client:
        yield client


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and param of an error response; checks its format."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert answer.headers["x-request-id"].startswith("req_")
    return answer.status_code, error["code"], error["param"]


CASES: list[tuple[dict[str, object], tuple[int, str, str | None]]] = [
    ({"model": "gpt-5"}, (404, "model_not_found", "model")),
    ({"voice": "unknown"}, (400, "unknown_voice", "voice")),
    ({"voice": {"id": "voice_0123456789abcdef"}}, (400, "unknown_voice", "voice")),
    ({"voice": 7}, (400, "invalid_request", "voice")),
    ({"voice": {"name": "ryan"}}, (400, "invalid_request", "voice")),
    ({"language": "klingon"}, (400, "unknown_language", "language")),
    ({"response_format": "midi"}, (400, "unsupported", "response_format")),
    ({"stream_format": "morse"}, (400, "invalid_request", "stream_format")),
    ({"stream": "maybe"}, (400, "invalid_request", "stream")),
    ({"speed": 1.5}, (400, "unsupported", "speed")),
    ({"speed": "fast"}, (400, "invalid_request", "speed")),
    ({"speed": 100}, (400, "invalid_request", "speed")),
    ({"seed": -1}, (400, "invalid_request", "seed")),
    ({"seed": 1.5}, (400, "invalid_request", "seed")),
    ({"temperature": -1}, (400, "invalid_request", "temperature")),
    ({"top_p": 0}, (400, "invalid_request", "top_p")),
    ({"max_new_tokens": -3}, (400, "invalid_request", "max_new_tokens")),
    ({"max_new_tokens": True}, (400, "invalid_request", "max_new_tokens")),
    ({"packet_frames": []}, (400, "invalid_request", "packet_frames")),
    ({"packet_frames": [1, 0]}, (400, "invalid_request", "packet_frames")),
    ({"initial_codec_chunk_frames": 1000}, (400, "invalid_request", "initial_codec_chunk_frames")),
    ({"sample_rate": 11_111}, (400, "unsupported", "sample_rate")),
    ({"sample_rate": 44_100, "response_format": "opus"}, (400, "unsupported", "sample_rate")),
    ({"task_type": "Base"}, (400, "unsupported", "task_type")),
    ({"task_type": "Choir"}, (400, "invalid_request", "task_type")),
    ({"ref_audio": "UklGRg=="}, (400, "unsupported", "ref_audio")),
    ({"word_timestamps": True, "stream_format": "sse"}, (400, "unsupported", "word_timestamps")),
    ({"word_timestamps": 1}, (400, "invalid_request", "word_timestamps")),
    ({"speaker_embedding": [0.1] * 1024}, (400, "unsupported", "speaker_embedding")),
    ({"ref_text": "words"}, (400, "invalid_request", "ref_text")),
    ({"instructions": 5}, (400, "invalid_request", "instructions")),
    ({"input": None}, (400, "invalid_request", "input")),
    ({"input": ["a"]}, (400, "invalid_request", "input")),
    ({"input": "word " * 1001}, (422, "too_long", "input")),
    ({"input": "half a pair \ud800"}, (400, "invalid_json", None)),
    ({"voice": "half a pair \ud800"}, (400, "invalid_json", None)),
]


@pytest.mark.parametrize(("fields", "expected"), CASES, ids=lambda value: json.dumps(value)[:50])
def test_error_names_the_invalid_field(
    web: httpx.Client, speaker: Running, fields: dict[str, object], expected: tuple[int, str, str | None]
) -> None:
    before = speaker.tts.stats().frames
    body = json.dumps({"model": "tiny", "voice": "ryan", "input": TEXT, **fields})
    answer = web.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    assert error_of(answer) == expected
    assert speaker.tts.stats().frames == before


@pytest.mark.parametrize("text", ["", "  ", "\n", "…", "—", "()", "🎵", "👩‍👩‍👧 🙂"])
def test_unspeakable_text_is_400_without_computation(web: httpx.Client, speaker: Running, text: str) -> None:
    answer = web.post("/v1/audio/speech", json={"input": text, "voice": "ryan"})
    assert error_of(answer) == (400, "unspeakable_text", "input")
    assert slots_free(speaker.tts)


@pytest.mark.parametrize(
    "text",
    [
        "9",
        "100",
        "8...",
        "so 🙂 glad",
        "**bold** `code`",
        "[a](http://b)",
        '<break time="1s"/> hm',
        "<b>open",
        "a < b & c",
    ],
)
def test_digits_and_markup_are_spoken(web: httpx.Client, text: str) -> None:
    options = {"input": text, "voice": "ryan", "response_format": "pcm", "max_new_tokens": 1, "stream": False}
    answer = web.post("/v1/audio/speech", json=options)
    assert (answer.status_code, len(answer.content)) == (200, 2 * 1920)


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"{", "application/json", (400, "invalid_json", None)),
        (b"[]", "application/json", (400, "invalid_json", None)),
        (b'{"seed": NaN, "input": "a"}', "application/json", (400, "invalid_json", None)),
        (b"\xff\xfe", "application/json", (400, "invalid_json", None)),
        (b"[" * 100_000, "application/json", (400, "invalid_json", None)),
        (b'{"input": "a"}', "application/x-www-form-urlencoded", (415, "unsupported_media_type", None)),
        (b"<a/>", "application/xml", (415, "unsupported_media_type", None)),
        (b"--x", "multipart/form-data; boundary=x", (400, "invalid_request", "input")),
        (b"--x", "multipart/form-data", (400, "invalid_form", None)),
    ],
)
def test_malformed_bodies_are_rejected(
    web: httpx.Client, content: bytes, kind: str, expected: tuple[int, str, str | None]
) -> None:
    answer = web.post("/v1/audio/speech", content=content, headers={"content-type": kind})
    assert error_of(answer) == expected


def test_unknown_routes_and_methods_use_the_error_format(web: httpx.Client) -> None:
    missing = web.get("/v1/{nothing}")
    assert error_of(missing) == (404, "not_found", None)
    assert "no route /v1/{nothing}" in missing.json()["error"]["message"]
    assert error_of(web.put("/v1/audio/speech"))[:2] == (405, "method_not_allowed")
    assert error_of(web.get("/v1/models/gpt-5"))[:2] == (404, "model_not_found")
    assert error_of(web.get("/v1/requests/req_0"))[:2] == (404, "unknown_request")


def test_request_too_long_for_a_slot_is_rejected_and_others_continue(web: httpx.Client, speaker: Running) -> None:
    fields = {"input": TEXT, "voice": "ryan", "max_new_tokens": 4000}
    with speaker.client().speak(TEXT, voice="ryan", max_new_tokens=8) as other:
        answer = web.post("/v1/audio/speech", json=fields)
        assert error_of(answer)[:2] == (422, "too_long")
        assert "256" in answer.json()["error"]["message"]
        assert len(other.read()) == 8 * 1920 * 2
    wait_for(lambda: slots_free(speaker.tts))


def test_unknown_fields_are_ignored_and_listed(web: httpx.Client) -> None:
    extra = {"foo": 1, "ünïcode\r\nX-Evil: 1": 2, "stage_params": {}}
    answer = web.post(
        "/v1/audio/speech", json={"input": TEXT, "voice": "alloy", "max_new_tokens": 1, "stream": False, **extra}
    )
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "foo, stage_params, %C3%BCn%C3%AFcode%0D%0AX-Evil%3A%201"
    assert "x-evil" not in answer.headers


def test_openapi_describes_the_request_body(web: httpx.Client) -> None:
    spec = web.get("/openapi.json").json()
    body = spec["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]
    assert {"input", "voice", "response_format", "ref_audio"} <= set(body["application/json"]["schema"]["properties"])
    assert body["multipart/form-data"]["schema"]["properties"]["ref_audio"]["format"] == "binary"
    assert "#/$defs" not in json.dumps(spec)
    assert web.get("/docs").status_code == 200
