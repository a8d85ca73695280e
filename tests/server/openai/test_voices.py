"""Cloned voices: sent with a request or uploaded; identified by content, never by label."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from legato.api import CloneReference
from legato.server.errors import ApiError
from legato.server.voices import VoiceFolder
from tests.server.running import Running

TEXT = "Some words."
OPTIONS = {"input": TEXT, "max_new_tokens": 2, "response_format": "pcm", "stream": False}


def recording(pitch_hz: float, *, rate_hz: int = 24_000, seconds: float = 1.2) -> bytes:
    """A WAV file: a tone that fades in and out."""
    t = np.arange(round(rate_hz * seconds)) / rate_hz
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * pitch_hz * t) * np.sin(np.pi * t / seconds), rate_hz, format="WAV")
    return file.getvalue()


LOW, HIGH = recording(110), recording(330)


@pytest.fixture(scope="module")
def web(cloner: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cloner.url, timeout=60) as client:
        yield client


def audio_of(answer: httpx.Response) -> bytes:
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.fixture(scope="module")
def low(cloner: Running) -> bytes:
    return expected_audio(cloner, LOW)


@pytest.fixture(scope="module")
def high(cloner: Running) -> bytes:
    return expected_audio(cloner, HIGH)


def expected_audio(cloner: Running, data: bytes) -> bytes:
    speech = cloner.tts.say(TEXT, clone=CloneReference(data, "Said in it."), max_frames=2)
    return np.clip(np.rint(speech.samples * 32768), -32768, 32767).astype("<i2").tobytes()


def close(one: bytes, other: bytes) -> bool:
    a, b = (np.frombuffer(each, "<i2").astype(int) for each in (one, other))
    return len(a) == len(b) and int(np.abs(a - b).max()) <= 1


def test_recording_as_base64_data_url_list_or_file(web: httpx.Client, low: bytes) -> None:
    plain = base64.b64encode(LOW).decode()
    for ref_audio in (plain, f"data:audio/wav;base64,{plain}", [plain]):
        body = {**OPTIONS, "ref_audio": ref_audio, "ref_text": "Said in it."}
        assert close(audio_of(web.post("/v1/audio/speech", json=body)), low)
    form = {name: str(value) for name, value in OPTIONS.items()}
    answer = web.post("/v1/audio/speech", data={**form, "ref_text": "Said in it."}, files={"ref_audio": LOW})
    assert close(audio_of(answer), low)


def test_voice_is_identified_by_content_not_by_label(web: httpx.Client, low: bytes, high: bytes) -> None:
    def speak(label: str, data: bytes) -> bytes:
        body = {**OPTIONS, "voice": label, "ref_audio": base64.b64encode(data).decode(), "ref_text": "Said in it."}
        return audio_of(web.post("/v1/audio/speech", json=body))

    assert close(speak("a", LOW), low)
    assert close(speak("b", LOW), low)
    assert close(speak("a", HIGH), high)
    assert not close(low, high)


def test_clone_without_transcript_is_noted_in_the_response(web: httpx.Client, low: bytes) -> None:
    body = {**OPTIONS, "ref_audio": base64.b64encode(LOW).decode()}
    vector_only = {**body, "ref_text": "Said in it.", "x_vector_only_mode": True}
    answers = [web.post("/v1/audio/speech", json=each) for each in (body, vector_only)]
    assert all("only its speaker vector" in answer.headers["x-notes"] for answer in answers)
    assert audio_of(answers[0]) == audio_of(answers[1])
    assert not close(audio_of(answers[0]), low)


def test_upload_list_speak_replace_delete(cloner: Running, web: httpx.Client, low: bytes, high: bytes) -> None:
    client = cloner.client()
    uploaded = client.upload_voice("Grandma", LOW, transcript="Said in it.")
    assert client.voices() == ["Grandma"]
    listed = web.get("/v1/audio/voices").json()["uploaded_voices"]
    assert [(each["id"], each["ref_text"], each["seconds"]) for each in listed] == [
        (uploaded["id"], "Said in it.", 1.2)
    ]
    for name in ("Grandma", "grandma", {"id": uploaded["id"]}):
        assert close(audio_of(web.post("/v1/audio/speech", json={**OPTIONS, "voice": name})), low)
    client.upload_voice("grandma", HIGH, transcript="Said in it.")
    assert client.voices() == ["grandma"]
    assert close(audio_of(web.post("/v1/audio/speech", json={**OPTIONS, "voice": "Grandma"})), high)
    assert client.delete_voice("grandma")["deleted"]
    assert client.voices() == []
    assert voice_files(folder_of(cloner)) == []
    missing = web.post("/v1/audio/speech", json={**OPTIONS, "voice": "grandma"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "unknown_voice")
    assert web.delete("/v1/audio/voices/grandma").status_code == 404


def voice_files(folder: Path) -> list[Path]:
    """The files of voices; the lock file of the folder stays."""
    return [path for path in folder.iterdir() if path.name != ".lock"]


def folder_of(cloner: Running) -> Path:
    folder = cloner.state.config.voices_folder
    assert folder is not None
    return folder


@pytest.mark.parametrize(
    ("fields", "files", "code"),
    [
        ({"name": "x"}, {"other": LOW}, "invalid_request"),
        ({"name": "../../etc"}, {"audio_sample": LOW}, "invalid_request"),
        ({"name": ""}, {"audio_sample": LOW}, "invalid_request"),
        ({"name": "x"}, {"audio_sample": b"not audio"}, "invalid_reference_audio"),
        ({"name": "x"}, {"audio_sample": recording(200, seconds=0.2)}, "invalid_reference_audio"),
        ({"name": "x"}, {"audio_sample": b""}, "invalid_request"),
    ],
)
def test_invalid_uploads_are_rejected(
    web: httpx.Client, fields: dict[str, str], files: dict[str, bytes], code: str
) -> None:
    answer = web.post("/v1/audio/voices", data=fields, files=files)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert web.get("/v1/audio/voices").json()["voices"] == []


@pytest.mark.parametrize(
    "ref_audio", ["!!", "data:audio/wav,plain", "http://127.0.0.1/a.wav", "file:///etc/passwd", ["", ""], "UklGRg=="]
)
def test_invalid_recordings_are_rejected(web: httpx.Client, ref_audio: object) -> None:
    answer = web.post("/v1/audio/speech", json={**OPTIONS, "ref_audio": ref_audio})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_audio")


def test_model_without_cloning_rejects_uploads(speaker: Running) -> None:
    with httpx.Client(base_url=speaker.url, timeout=60) as web:
        answer = web.post("/v1/audio/voices", data={"name": "x"}, files={"audio_sample": LOW})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported")
        assert not web.get("/v1/models").json()["data"][0]["legato"]["clones"]


# --- VoiceFolder ------------------------------------------------------------------------------------------------------

TONE = np.sin(np.arange(24_000) / 10).astype(np.float32)


def test_voices_are_persistent_and_stored_without_pickle(tmp_path: Path) -> None:
    first = VoiceFolder(tmp_path / "new", limit=10)
    voice = first.add("Ann", TONE, 24_000, "words")
    again = VoiceFolder(tmp_path / "new", limit=10)
    assert again.voices() == [voice]
    samples, rate_hz = soundfile.read(again.recording(voice), dtype="float32")
    assert rate_hz == 24_000
    assert np.array_equal(samples, TONE)
    assert sorted(path.suffix for path in voice_files(tmp_path / "new")) == [".json", ".wav"]


def test_shared_recording_is_deleted_with_its_last_voice(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path, limit=10)
    ann, bob = folder.add("Ann", TONE, 24_000, ""), folder.add("Bob", TONE, 24_000, "")
    assert ann.recording == bob.recording
    folder.delete("Ann")
    assert folder.recording(bob).is_file()
    folder.delete("Bob")
    assert voice_files(tmp_path) == []


def test_number_of_voices_is_limited(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path, limit=1)
    folder.add("Ann", TONE, 24_000, "")
    with pytest.raises(ApiError) as refused:
        folder.add("Bob", TONE, 24_000, "")
    assert refused.value.status == 409
    folder.add("ann", TONE, 24_000, "other words")
    assert [voice.transcript for voice in folder.voices()] == ["other words"]


@pytest.mark.parametrize(
    "fault", ["not json", "other id", "recording elsewhere", "no recording", "wrong type", "extra"]
)
def test_invalid_voice_files_are_ignored(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    voice = VoiceFolder(tmp_path, limit=10).add("Ann", TONE, 24_000, "")
    path = tmp_path / f"{voice.id}.json"
    record = json.loads(path.read_text())
    match fault:
        case "other id":
            record["id"] = "voice_ffffffffffffffff"
        case "recording elsewhere":
            record["recording"] = "../../../etc/passwd"
        case "no recording":
            (tmp_path / f"{voice.recording}.wav").unlink()
        case "wrong type":
            record["transcript"] = 5
        case "extra":
            record["command"] = "rm"
    path.write_text("{" if fault == "not json" else json.dumps(record))
    assert VoiceFolder(tmp_path, limit=10).voices() == []
    assert "ignoring voice file" in caplog.text


def test_without_a_folder_uploads_are_rejected() -> None:
    folder = VoiceFolder(None, limit=10)
    assert folder.voices() == []
    assert folder.find("x") is None
    with pytest.raises(ApiError, match="--voices"):
        folder.add("x", TONE, 24_000, "")
