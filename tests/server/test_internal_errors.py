"""Internal failures reach clients as one sentence with the request id; the cause is in the log only. Row S18."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.tts import Synthesize

from legato.api import load
from legato.config.server import ServerConfig
from legato.server.encoding import StreamEncoder
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import LOW
from tests.server.running import Running, running, wait_for
from tests.server.sockets import run_client, ws

SECRET = "tensor at 0x7f00 in /opt/secret/core.py"
BODY = {"input": "A few words.", "voice": "ryan", "max_new_tokens": 12, "response_format": "pcm"}
SOCKETS = {
    "/v1/audio/speech/stream": [
        {"type": "session.config", "voice": "ryan", "max_new_tokens": 12},
        {"type": "input.text", "text": "A few words."},
        {"type": "input.done"},
        {"type": "session.close"},
    ],
    "/api-ws/v1/realtime": [
        {"type": "session.update", "session": {"voice": "Serena", "max_new_tokens": 12, "mode": "commit"}},
        {"type": "input_text_buffer.append", "text": "A few words."},
        {"type": "input_text_buffer.commit"},
        {"type": "session.finish"},
    ],
}


@pytest.fixture
def server(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server of its own, which the test breaks."""
    config = ServerConfig(model_id="tiny", warm_up=False, wyoming_port=0)
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, max_seq_len=256) as tts, running(tts, config) as up:
        wait_for(lambda: up.state.wyoming_port is not None)
        yield up


@pytest.fixture(params=["step", "later step", "one stream", "open", "encoder"])
def fault(request: pytest.FixtureRequest, server: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the engine or an encoder fail with an internal message."""
    runner, calls = server.tts._engine.runner, []

    def fail(*_arguments: object) -> object:
        raise RuntimeError(SECRET)

    def fail_later(sequences: list[object]) -> object:
        calls.append(1)
        return predict_frames(sequences) if len(calls) < 8 else fail()  # type: ignore[arg-type]

    async def fail_to_open(*_arguments: object, **_options: object) -> object:
        return fail()

    predict_frames = runner.predict_frames
    match request.param:
        case "step":
            monkeypatch.setattr(runner, "predict_frames", fail)
        case "later step":
            monkeypatch.setattr(runner, "predict_frames", fail_later)
        case "one stream":
            monkeypatch.setattr(runner, "add_sequence", fail)
        case "open":
            monkeypatch.setattr(server.state.bridge, "open", fail_to_open)
        case "encoder":
            monkeypatch.setattr(StreamEncoder, "encode", fail)
    return str(request.param)


def check(text: str, *, request_id: str = "") -> None:
    """`text` has a request id and no internals."""
    (found,) = set(re.findall(r"req_[0-9a-f]{24}", text))
    assert not request_id or found == request_id
    for internal in ("0x", "/opt", "secret", "tensor", "RuntimeError", "Error:", "Traceback", ".py"):
        assert internal not in text, text


def test_http_has_one_sentence_and_the_request_id(
    server: Running, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as web:
        whole = web.post("/v1/audio/speech", json={**BODY, "stream": False})
        assert whole.status_code in (500, 503), fault
        request_id = whole.headers["x-request-id"]
        check(whole.json()["error"]["message"], request_id=request_id)
        record = web.get(f"/v1/requests/{request_id}").json()
        if record["error"]["message"]:
            check(record["error"]["message"], request_id=request_id)
        assert SECRET not in json.dumps(record)
        events = web.post("/v1/audio/speech", json={**BODY, "stream_format": "sse"})
        assert SECRET not in events.text
        if events.status_code == 200 and fault != "encoder":
            last = json.loads(events.text.strip().rpartition("data: ")[2])
            assert last["type"] == "speech.audio.error"
            check(last["error"]["message"], request_id=events.headers["x-request-id"])
    assert SECRET in caplog.text


@pytest.mark.parametrize("path", list(SOCKETS))
def test_sockets_have_one_sentence_and_the_request_id(server: Running, fault: str, path: str) -> None:
    if fault == "encoder":
        pytest.skip("sockets have their own encoder")
    messages: list[dict[str, object]] = []
    with connect(ws(server) + path) as client:
        for message in SOCKETS[path]:
            client.send(json.dumps(message))
        messages += [json.loads(message) for message in client if isinstance(message, str)]
    errors = [message for message in messages if message["type"] == "error"]
    assert errors
    for error in errors:
        check(json.dumps(error))


def test_wyoming_has_one_sentence_and_the_request_id(server: Running, fault: str) -> None:
    if fault == "encoder":
        pytest.skip("Wyoming has its own encoder")

    async def session() -> str:
        port = server.state.wyoming_port
        assert port is not None
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Synthesize("A few words. " * 3).event())
            while event := await client.read_event():
                if Error.is_type(event.type):
                    return Error.from_event(event).text
        raise AssertionError("no error")

    check(run_client(session()))


def test_undecodable_recording_has_no_address(cloner: Running) -> None:
    with httpx.Client(base_url=cloner.url, timeout=60) as web:
        for data in (b"not audio", LOW[:30], b"RIFF" + bytes(100), b"fLaC" + bytes(50)):
            body = {"input": "A.", "ref_audio": base64.b64encode(data).decode()}
            for answer in (
                web.post("/v1/audio/speech", json=body),
                web.post("/v1/audio/voices", data={"name": "x"}, files={"audio_sample": data}),
            ):
                assert answer.status_code == 400
                assert "0x" not in answer.text
                assert "BytesIO" not in answer.text


def test_missing_recording_has_no_path(cloner: Running) -> None:
    folder = cloner.state.config.voices_folder
    assert folder is not None
    with httpx.Client(base_url=cloner.url, timeout=60) as web:
        web.post("/v1/audio/voices", data={"name": "gone"}, files={"audio_sample": LOW}).raise_for_status()
        for path in Path(folder).glob("*.wav"):
            path.unlink()
        answer = web.post("/v1/audio/speech", json={"input": "A.", "voice": "gone"})
        web.delete("/v1/audio/voices/gone")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "voice_unavailable")
    assert str(folder) not in answer.text
    assert ".wav" not in answer.text
