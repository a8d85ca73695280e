"""Several processes share one folder of voices: nothing is lost, changes are seen everywhere, a name has one winner."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from legato.server.errors import ApiError
from legato.server.storage import write_file
from legato.server.voice_watcher import PERIOD_S, VoiceWatcher
from legato.server.voices import VoiceFolder
from tests.server.running import wait_for

RATE_HZ = 24_000
WRITERS, VOICES = 3, 20


def tone(number: int) -> npt.NDArray[np.float32]:
    return np.asarray(np.sin(np.arange(2400) * (0.01 + 0.001 * number)), dtype=np.float32)


def write_voices(folder: Path, writer: int) -> None:
    """Upload voices, then delete every second one, of which all share a recording with those of other writers."""
    store = VoiceFolder(folder, limit=1000)
    for number in range(VOICES):
        store.add(f"w{writer} v{number}", tone(number), RATE_HZ, "")
    for number in range(0, VOICES, 2):
        store.delete(f"w{writer} v{number}")


def test_uploads_and_deletes_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_voices, args=(tmp_path, writer)) for writer in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    store = VoiceFolder(tmp_path, limit=1000)
    expected = {f"w{writer} v{number}" for writer in range(WRITERS) for number in range(1, VOICES, 2)}
    assert {voice.name for voice in store.voices()} == expected
    assert all(store.recording(voice).is_file() for voice in store.voices())
    # Each recording is stored once, and those that no voice uses any more are gone.
    assert len(list(tmp_path.glob("*.wav"))) == VOICES // 2


def test_changes_of_another_process_are_seen(tmp_path: Path) -> None:
    mine, other = VoiceFolder(tmp_path, limit=10), VoiceFolder(tmp_path, limit=10)
    with VoiceWatcher(mine, period_s=0.02):
        voice = other.add("Ann", tone(0), RATE_HZ, "words")
        wait_for(lambda: mine.find("ann") == voice, seconds=10)
        other.delete("Ann")
        wait_for(lambda: mine.voices() == [], seconds=10)
    assert PERIOD_S < 1.0


def test_without_a_refresh_changes_are_not_seen(tmp_path: Path) -> None:
    """The control of the test above."""
    mine, other = VoiceFolder(tmp_path, limit=10), VoiceFolder(tmp_path, limit=10)
    other.add("Ann", tone(0), RATE_HZ, "")
    assert mine.voices() == []
    mine.refresh()
    assert [voice.name for voice in mine.voices()] == ["Ann"]


def test_concurrent_uploads_of_one_name_have_one_winner(tmp_path: Path) -> None:
    stores = [VoiceFolder(tmp_path, limit=10) for _ in range(4)]
    began = [store.snapshot("Ann") for store in stores]

    def upload(number: int) -> str:
        try:
            return stores[number].add("Ann", tone(number), RATE_HZ, "", began=began[number]).id
        except ApiError as error:
            return f"{error.status} {error.code}"

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(upload, range(4)))
    assert results.count("409 voice_conflict") == 3
    (winner,) = VoiceFolder(tmp_path, limit=10).voices()
    assert winner.id in results
    # A later upload, which has seen the winner, replaces it; the same content again is not a conflict.
    replaced = stores[0].add("Ann", tone(9), RATE_HZ, "", began=stores[0].snapshot("Ann"))
    assert stores[1].add("Ann", tone(9), RATE_HZ, "", began=began[1]).id == replaced.id


def test_limit_counts_the_voices_of_all_processes(tmp_path: Path) -> None:
    first, second = VoiceFolder(tmp_path, limit=1), VoiceFolder(tmp_path, limit=1)
    first.add("Ann", tone(0), RATE_HZ, "")
    with pytest.raises(ApiError, match="the limit of 1"):
        second.add("Bob", tone(1), RATE_HZ, "")


def test_start_does_not_remove_what_another_process_is_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new server sweeps temporary files, but not while another one holds the lock."""
    store, started = VoiceFolder(tmp_path, limit=10), []

    def write_slowly(path: Path, data: bytes) -> None:
        part = path.with_name(path.name + ".part")
        part.write_bytes(data)
        started.append(VoiceFolder(tmp_path, limit=10))
        assert part.exists()
        part.unlink()
        write_file(path, data)

    monkeypatch.setattr("legato.server.voices.write_file", write_slowly)
    store.add("Ann", tone(0), RATE_HZ, "")
    assert len(started) == 2
    assert [voice.name for voice in store.voices()] == ["Ann"]


def test_lock_held_by_another_process_is_an_error_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr("legato.server.voices._LOCK_S", 0.1)
    store = VoiceFolder(tmp_path, limit=10)
    with FileLock(tmp_path / ".lock"):
        started_s = time.monotonic()
        with pytest.raises(ApiError, match="another process has locked the folder") as refused:
            store.add("Ann", tone(0), RATE_HZ, "")
    assert refused.value.status == 503
    assert time.monotonic() - started_s < 10
