"""Storing voices on full, read-only and hanging disks, after crashes, and with odd names and records."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import soundfile

from legato.errors import InputError, UnknownVoiceError
from legato.server import storage, voices
from legato.server.errors import ApiError
from legato.server.openai import voice_routes
from legato.server.voices import UploadedVoice, VoiceFolder, validate_name
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import LOW, TONE
from tests.server.running import Running, cloning, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


# --- faults of the disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "calls"),
    [
        *(("open", calls) for calls in range(4)),
        *(("fsync", calls) for calls in range(4)),
        ("replace", 0),
        ("replace", 1),
    ],
)
@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 503), (errno.EACCES, 503)]
)
def test_failed_write_leaves_nothing_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str, calls: int, number: int, status: int
) -> None:
    """The operation fails after some `calls`: in the recording's file, in the record's, or in the folder itself."""
    store = VoiceFolder(folder, limit=10)
    kept = store.add("Kept", TONE, 24_000, "")
    before = sorted(folder.iterdir())
    seen: list[object] = []
    original = getattr(os, operation)

    def fail_later(*arguments: object, **options: object) -> object:
        seen.append(arguments)
        if len(seen) > calls:
            raise OSError(number, os.strerror(number))
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, fail_later)
        with pytest.raises(ApiError) as refused:
            store.add("Ann", TONE[::2], 24_000, "words")
    assert refused.value.status == status
    assert str(folder) in str(refused.value)
    assert os.strerror(number).lower() in str(refused.value)
    assert sorted(folder.iterdir()) == before
    assert store.voices() == [kept]
    store.add("Ann", TONE[::2], 24_000, "words")
    assert {voice.name for voice in VoiceFolder(folder, limit=10).voices()} == {"Kept", "Ann"}


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = VoiceFolder(tmp_path / "file" / "voices", limit=10)
    with pytest.raises(ApiError) as refused:
        store.add("Ann", TONE, 24_000, "")
    assert (refused.value.status, refused.value.code) == (503, "storage_unavailable")


def test_failed_delete_keeps_the_voice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VoiceFolder(folder, limit=10)
    ann = store.add("Ann", TONE, 24_000, "")

    def unlink(_path: Path, **_options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(ApiError, match="read-only file system"):
            store.delete("Ann")
    assert store.voices() == [ann]
    assert store.recording(ann).is_file()


def test_leftovers_of_a_crash_are_removed_at_start(folder: Path) -> None:
    VoiceFolder(folder, limit=10).add("Ann", TONE, 24_000, "")
    names = {path.name for path in folder.iterdir()}
    for name in ("a.part", f"{'0' * 32}.wav.part", "voice_0123456789abcdef.json.part"):
        (folder / name).write_bytes(b"x" * 1000)
    VoiceFolder(folder, limit=10)
    assert {path.name for path in folder.iterdir()} == names


def test_files_are_synced_and_only_readable_by_the_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def record(name: str, original: Callable[..., object]) -> None:
        def call(*arguments: object) -> object:
            order.append(name)
            return original(*arguments)

        monkeypatch.setattr(os, name, call)

    record("fsync", os.fsync)
    record("replace", os.replace)
    previous = os.umask(0)
    try:
        VoiceFolder(folder, limit=10).add("Ann", TONE, 24_000, "")
    finally:
        os.umask(previous)
    assert order == ["fsync", "replace", "fsync"] * 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600] * 3  # and the lock file
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_recording_that_was_removed_is_written_again(folder: Path) -> None:
    store = VoiceFolder(folder, limit=10)
    voice = store.add("Ann", TONE, 24_000, "")
    store.recording(voice).unlink()
    with pytest.raises(ApiError, match="cannot be read"):
        store.recording_bytes(voice)
    store.add("Ann", TONE, 24_000, "")
    assert store.recording(voice).is_file()


# --- a disk that hangs ------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tiny_checkpoint: TinyCheckpoint, folder: Path) -> Iterator[Running]:
    with cloning(tiny_checkpoint("tiny-base"), folder) as running:
        yield running


def test_server_responds_while_the_disk_hangs(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    release, hanging = threading.Event(), threading.Event()

    def hang(path: Path, data: bytes) -> None:
        hanging.set()
        assert release.wait(60)
        storage.write_file(path, data)

    monkeypatch.setattr(voices, "write_file", hang)
    monkeypatch.setattr(voice_routes, "DISK_S", 1.0)
    with httpx.Client(base_url=server.url, timeout=20) as web, ThreadPoolExecutor(4) as threads:

        def upload(name: str) -> httpx.Response:
            files = {"audio_sample": LOW}
            return httpx.post(f"{server.url}/v1/audio/voices", data={"name": name}, files=files, timeout=60)

        uploads = [threads.submit(upload, f"voice {number}") for number in range(3)]
        try:
            wait_for(hanging.is_set)
            for _ in range(5):
                assert web.get("/health").status_code == 200
                assert web.get("/v1/audio/voices").json()["uploaded_voices"] == []
                assert web.post("/v1/audio/speech", json={"input": "A.", "voice": "nobody"}).status_code == 400
            for each in uploads:
                answer = each.result()
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        finally:
            release.set()
        wait_for(lambda: server.state.bridge.jobs()["disk"] == 0)


def test_no_lock_of_the_event_loop_is_held_during_disk_operations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VoiceFolder(folder, limit=10)
    store.add("Old", TONE, 24_000, "")

    def look(*arguments: object, **options: object) -> object:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(store.find, "old").result(timeout=5) is not None
            thread.submit(store.voices).result(timeout=5)
        return original(*arguments, **options)

    for name in ("open", "fsync", "replace"):
        original = getattr(os, name)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, look)
            store.add(name, TONE, 24_000, name)


# --- names and records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Ann", "Zoë", "Zoe\u0308", "अनिता", "สมชาย", "李雷", "محمد", "a.b-c_d e", "7", "_x", "Ａｎｎ"]
)
def test_names_of_every_script_are_allowed_and_composed(folder: Path, name: str) -> None:
    store = VoiceFolder(folder, limit=10)
    voice = store.add(f" {name} ", TONE, 24_000, "")
    assert store.find(name) == voice
    assert store.find(name.upper()) == voice
    assert VoiceFolder(folder, limit=10).find(name) == voice


def test_decomposed_and_composed_names_are_one_voice(folder: Path) -> None:
    store = VoiceFolder(folder, limit=10)
    store.add("Zoe\u0308", TONE, 24_000, "one")
    store.add("Zo\u00eb", TONE, 24_000, "two")
    assert [voice.transcript for voice in store.voices()] == ["two"]


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a/b", "/", "../x", "..", ".", "a/../b", "a\\b", "a\x00b", "a\nb", "a\tb", "a\u2028b", "\u202eevil"),
        *(
            "-x",
            ".x",
            "a:b",
            "a%2fb",
            "a,b",
            "a'b",
            'a"b',
            "<b>",
            "a\u2215b",
            "🙂",
            "\u0301",
            "x" * 65,
            "default",
            "Default",
        ),
    ],
)
def test_other_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError):
        validate_name(name)
    with pytest.raises(InputError):
        VoiceFolder(folder, limit=10).add(name, TONE, 24_000, "")
    assert not folder.exists()


@pytest.mark.parametrize(
    "recording", ["../outside", "sub/inside", "/{outside}", "..\\outside", "outside", "", ".", "A" * 32, "0" * 31]
)
def test_record_must_not_point_to_another_file(tmp_path: Path, folder: Path, recording: str) -> None:
    """The file exists, so that only the check of the record refuses it."""
    voice = VoiceFolder(folder, limit=10).add("Ann", TONE, 24_000, "")
    recording = recording.replace("{outside}", str(tmp_path / "outside")[1:])
    (folder / "sub").mkdir()
    target = folder / f"{recording}.wav"
    soundfile.write(target, TONE, 24_000, format="WAV")
    assert target.is_file()
    (folder / f"{voice.id}.json").write_text(json.dumps({**asdict(voice), "recording": recording}))
    assert VoiceFolder(folder, limit=10).voices() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", 5), ("name", None), ("name", "a/b"), ("recording", 7), ("recording", None), ("recording", ["a"])),
        *(("transcript", {}), ("created_s", "1"), ("seconds", "1"), ("id", "../voice_0123456789abcdef")),
    ],
)
def test_record_with_wrong_values_is_ignored(folder: Path, field: str, value: object) -> None:
    voice = VoiceFolder(folder, limit=10).add("Ann", TONE, 24_000, "")
    (folder / f"{voice.id}.json").write_text(json.dumps({**asdict(voice), field: value}))
    assert VoiceFolder(folder, limit=10).voices() == []
    (folder / f"{voice.id}.json").write_text("[" * 5000)
    assert VoiceFolder(folder, limit=10).voices() == []


def test_voices_are_resolved_only_by_models_that_clone(speaker: Running, cloner: Running, tmp_path: Path) -> None:
    """Servers of one user share a folder of voices; an uploaded "alloy" must not hide OpenAI's voice name."""
    shared = VoiceFolder(tmp_path, limit=10)
    voice = shared.add("alloy", TONE, 24_000, "")
    other = shared.add("Ann", TONE, 24_000, "")
    names = type(speaker.state.names)
    speaking = names(speaker.state.config, speaker.tts.model.config, shared)
    cloning_names = names(cloner.state.config, cloner.tts.model.config, shared)
    assert speaking.voice("alloy").speaker
    with pytest.raises(UnknownVoiceError) as unknown:
        speaking.voice("Ann")
    assert "Ann," not in str(unknown.value)
    assert (cloning_names.voice("alloy").uploaded, cloning_names.voice("ANN").uploaded) == (voice, other)


def test_audit_line_names_voice_and_client(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "legato.server")
    with httpx.Client(base_url=server.url, timeout=20) as web:
        answer = web.post("/v1/audio/voices", data={"name": "Ann"}, files={"audio_sample": LOW})
        voice, request_id = answer.json()["id"], answer.headers["x-request-id"]
        deleted = web.delete("/v1/audio/voices/ann").headers["x-request-id"]
    assert f"{request_id} voice kept: {voice} 'Ann' (client 127.0.0.1" in caplog.text
    assert f"{deleted} voice deleted: {voice} 'Ann' (client 127.0.0.1" in caplog.text


def test_samples_are_kept_to_the_bit(folder: Path) -> None:
    noise = np.random.default_rng(1).normal(size=24_000).astype(np.float32)
    store = VoiceFolder(folder, limit=10)
    voice: UploadedVoice = store.add("Ann", noise, 24_000, "")
    read, rate_hz = soundfile.read(store.recording(voice), dtype="float32")
    assert rate_hz == 24_000
    assert np.array_equal(read, noise)
    assert SimpleNamespace(**asdict(voice)).seconds == 1.0
