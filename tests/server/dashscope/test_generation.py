"""DashScope's HTTP route with the real SDK: a file by URL, streamed events, errors in its own form."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import dashscope
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from legato.api import load
from legato.config.server import ServerConfig
from legato.server.finished_files import KEPT_BYTES, KEPT_S, FinishedFiles
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for

ROUTE = "/api/v1/services/aigc/multimodal-generation/generation"
TEXT = "Hi."
Samples = npt.NDArray[np.int16]


@pytest.fixture
def sdk(speaker: Running, monkeypatch: pytest.MonkeyPatch) -> type[dashscope.MultiModalConversation]:
    monkeypatch.setattr(dashscope, "base_http_api_url", f"{speaker.url}/api/v1")
    return dashscope.MultiModalConversation


@pytest.fixture(scope="module")
def expected(speaker: Running) -> Samples:
    body = {"input": TEXT, "voice": "ryan", "seed": 3, "response_format": "pcm", "language": "English"}
    answer = httpx.post(f"{speaker.url}/v1/audio/speech", json=body, timeout=60)
    return np.frombuffer(answer.content, "<i2")


def call(sdk: Any, **fields: object) -> Any:
    options = {"model": "qwen3-tts-flash", "api_key": "k", "text": TEXT, "voice": "Ryan", "seed": 3}
    return sdk.call(**{**options, "language_type": "English", **fields})


def close(one: Samples, other: Samples) -> bool:
    return len(one) == len(other) and int(np.abs(one.astype(int) - other).max()) <= 1


def test_call_returns_the_url_of_a_file(sdk: Any, expected: Samples) -> None:
    answer = call(sdk)
    assert (answer.status_code, answer.code, answer.output.finish_reason) == (200, "", "stop")
    assert answer.output.audio.data == ""
    assert answer.usage.characters == len(TEXT)
    samples, rate_hz = soundfile.read(io.BytesIO(httpx.get(answer.output.audio.url).content), dtype="int16")
    assert rate_hz == 24_000
    assert close(samples, expected)


def test_streamed_call_has_the_same_audio_then_the_url(sdk: Any, expected: Samples) -> None:
    *packets, last = list(call(sdk, stream=True))
    assert len(packets) > 1
    assert {packet.output.finish_reason for packet in packets} == {"null"}
    samples = np.frombuffer(b"".join(base64.b64decode(each.output.audio.data) for each in packets), "<i2")
    assert close(samples, expected)
    assert last.output.finish_reason == "stop"
    whole, _ = soundfile.read(io.BytesIO(httpx.get(last.output.audio.url).content), dtype="int16")
    assert np.array_equal(whole, samples)


def test_voices_of_the_hosted_service_and_parameters_without_effect(sdk: Any, speaker: Running) -> None:
    answer = call(sdk, voice="Cherry", instructions="Slowly.", optimize_instructions=True, volume=70)
    assert answer.status_code == 200
    record = httpx.get(f"{speaker.url}/v1/requests/{answer.request_id}").json()
    assert (record["status"], record["route"]) == ("finished", ROUTE)
    fields = {"input": {"text": TEXT}, "parameters": {"volume": 70, "instructions": "Slowly."}}
    notes = httpx.post(f"{speaker.url}{ROUTE}", json=fields, timeout=60).json()["notes"]
    assert notes[-1] == "parameters.volume has no effect"
    assert "ignores instruct" in notes[0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"voice": "nobody"}, "unknown_voice"),
        ({"text": "..."}, "unspeakable_text"),
        ({"text": "w " * 2600}, "invalid_request"),
        ({"language_type": "Klingon"}, "unknown_language"),
        ({"seed": -1}, "invalid_request"),
        ({"instructions": 7}, "invalid_request"),
        ({"sample_rate": 11_111}, "unsupported"),
        ({"speech_rate": 9.0}, "invalid_request"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_form_of_the_protocol(sdk: Any, fields: dict[str, object], code: str, stream: bool) -> None:
    answer = call(sdk, **fields, stream=stream)
    answer = next(iter(answer)) if stream else answer
    assert answer.status_code == 400
    assert answer.code == code, answer
    assert answer.message
    assert answer.request_id.startswith("req_")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"input": 3}', b'{"input": {"messages": []}}', b"{}"])
def test_malformed_bodies(speaker: Running, content: bytes) -> None:
    answer = httpx.post(f"{speaker.url}{ROUTE}", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()) == {"code", "message", "request_id", "error"}


def test_long_text_with_escapes_is_accepted(speaker: Running) -> None:
    """The SDK escapes what is not ASCII: 5,000 characters are 30 kB."""
    fields = {"input": {"text": "\u4f60" * 4990, "voice": "nobody"}}
    answer = httpx.post(
        f"{speaker.url}{ROUTE}", content=json.dumps(fields), headers={"content-type": "application/json"}
    )
    assert answer.json()["code"] == "unknown_voice"


def test_disconnect_cancels_the_stream(speaker: Running) -> None:
    body = {"input": {"text": "A long text. " * 20, "voice": "ryan"}}
    with (
        httpx.Client(timeout=60) as web,
        web.stream("POST", f"{speaker.url}{ROUTE}", json=body, headers={"X-DashScope-SSE": "enable"}) as answer,
    ):
        next(answer.iter_lines())
    wait_for(lambda: slots_free(speaker.tts))


@pytest.fixture(scope="module")
def locked(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    config = ServerConfig(warm_up=False, api_key="secret", root_path="/tts")
    with load(tiny_checkpoint("tiny-custom-voice")) as tts, running(tts, config) as server:
        yield server


def test_the_url_needs_no_key_but_cannot_be_guessed(locked: Running) -> None:
    url, body = f"{locked.url}/tts{ROUTE}", {"input": {"text": TEXT, "voice": "ryan"}}
    assert httpx.post(url, json=body).status_code == 401
    answer = httpx.post(url, json=body, headers={"authorization": "Bearer secret"}, timeout=60).json()
    file_url = answer["output"]["audio"]["url"]
    assert file_url.startswith(f"{locked.url}/tts/v1/audio/files/")
    assert httpx.get(file_url).content[:4] == b"RIFF"
    assert httpx.get(file_url.replace(".wav", "0.wav")).status_code == 404
    assert httpx.get(f"{locked.url}/tts/v1/audio/files/..%2f..%2fhealth").status_code == 404


def test_files_are_bounded_in_bytes_and_time() -> None:
    now_s = 0.0
    files = FinishedFiles(clock=lambda: now_s)
    names = [files.add(bytes(KEPT_BYTES // 3), "audio/wav", "wav")[0] for _ in range(4)]
    assert [files.find(name) is not None for name in names] == [False, True, True, True]
    large, _ = files.add(bytes(KEPT_BYTES + 1), "audio/wav", "wav")
    assert [files.find(name) is not None for name in (*names, large)] == [False] * 4 + [True]
    now_s = KEPT_S
    assert files.find(large) is None
