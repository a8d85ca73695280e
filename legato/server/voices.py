"""Uploaded voices on disk: content-addressed recordings plus one JSON file per voice.

Several processes may share a folder; a lock file orders their changes. A recording is a WAV file named by the digest of
its samples; a voice is a JSON file with its name, transcript and recording digest. Files are written completely, synced
and renamed, so that a crash leaves no partial files; only the owner may read them. A file never changes: its name is a
digest of its content, so the list of names shows what other processes have added or deleted. Everything downstream is
keyed by the digest, never by the name: a name that is reused for another recording cannot return audio of the old one.

`add`, `delete`, `refresh` and `recording_bytes` use the disk and may block for as long as it does; call them from a
thread. `voices` and `find` only look into memory. They may be called on the event loop: no lock that they take is held
during disk operations.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
from filelock import FileLock, Timeout

from legato.config.aliases import folded_name
from legato.errors import InputError
from legato.server.errors import ApiError
from legato.server.storage import remove_file, storage_error, sweep_temporary_files, write_file

log = logging.getLogger("legato.server")

MAX_NAME = 64
RESERVED_NAMES = ("default", "auto", "none", "null")
"""Names that stand for no particular voice: "default" in requests, the others in the settings of clients."""
_ID_PREFIX = "voice_"
_ID_LENGTH, _DIGEST_LENGTH = 16, 32
_HEX = frozenset("0123456789abcdef")
_LOCK_FILE = ".lock"
_LOCK_S = 20.0
"""How long a change waits for the change of another process."""


@dataclass(frozen=True, slots=True)
class UploadedVoice:
    """An uploaded voice. `recording`: digest of its samples. `transcript`: the text spoken in the recording."""

    id: str
    name: str
    transcript: str
    recording: str
    seconds: float
    created_s: int


@dataclass(frozen=True, slots=True)
class NameSnapshot:
    """The voice that a name stands for at one time, if any. An upload that began then may replace only this one."""

    voice: UploadedVoice | None


class VoiceFolder:
    """The uploaded voices in `folder`, at most `limit`. With `folder=None` it is empty and rejects uploads."""

    def __init__(self, folder: Path | None, *, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._disk_lock = threading.Lock()
        """Held by the one thread that changes the folder. Never taken on the event loop."""
        self._lock = threading.Lock()
        """Protects `_voices`; held for memory operations only."""
        self._voices: dict[str, UploadedVoice] = {}
        self._invalid: set[str] = set()
        """Ids of files that were ignored; their content cannot change."""
        if folder is not None:
            self._load_all(folder)

    @property
    def stores(self) -> bool:
        """Whether uploads are stored."""
        return self._folder is not None

    def voices(self) -> list[UploadedVoice]:
        """All voices, oldest first."""
        with self._lock:
            return sorted(self._voices.values(), key=lambda voice: (voice.created_s, voice.name))

    def find(self, name: str) -> UploadedVoice | None:
        """The voice with this id or name (case-insensitive)."""
        with self._lock:
            return self._find(name)

    def recording(self, voice: UploadedVoice) -> Path:
        """The path of a voice's WAV file."""
        return self._required_folder() / f"{voice.recording}.wav"

    def recording_bytes(self, voice: UploadedVoice) -> bytes:
        """The voice's WAV file. `ApiError` 503 if it cannot be read."""
        try:
            return self.recording(voice).read_bytes()
        except OSError as error:
            log.error("the recording of voice %s cannot be read: %s", voice.id, error)
            raise ApiError(
                503,
                "voice_unavailable",
                f"the recording of voice {voice.name!r} cannot be read: retry or upload it again",
            ) from error

    def add(
        self,
        name: str,
        samples: npt.NDArray[np.float32],
        sample_rate_hz: int,
        transcript: str,
        *,
        began: NameSnapshot | None = None,
    ) -> UploadedVoice:
        """Store mono `samples` [N] as the voice `name`, replacing a voice with the same name.

        `began`: what the name stood for when the upload began; `ApiError` 409 if another upload has changed that.
        Also 409 if there are too many voices; 507 or 503 if the folder cannot take them.
        """
        folder = self._required_folder()
        voice = new_voice(name, samples, sample_rate_hz, transcript)
        wav = io.BytesIO()
        soundfile.write(wav, samples, sample_rate_hz, format="WAV", subtype="FLOAT")
        with self._changing(folder, "the voice cannot be stored"):
            with self._lock:
                old = self._find_by_name(voice.name)
                full = old is None and len(self._voices) >= self._limit
            expected = began.voice.id if began is not None and began.voice is not None else None
            if began is not None and (old.id if old is not None else None) not in (expected, voice.id):
                raise ApiError(
                    409,
                    "voice_conflict",
                    f"another upload stored a voice {voice.name!r} at the same time: choose another name, or retry to "
                    "replace it",
                )
            if full:
                raise ApiError(
                    409, "too_many_voices", f"the limit of {self._limit} uploaded voices is reached: delete one first"
                )
            self._write(folder, voice, wav.getvalue())
            with self._lock:
                self._voices[voice.id] = voice
            if old is not None and old.id != voice.id:
                self._remove(folder, old)
        return voice

    def delete(self, name: str) -> UploadedVoice:
        """Delete the voice with this id or name, and its recording unless another voice uses it."""
        if self._folder is None:
            raise _unknown_voice(name)
        with self._changing(self._folder, "the voice cannot be deleted"):
            voice = self.find(name)
            if voice is None:
                raise _unknown_voice(name)
            self._remove(self._folder, voice)
        return voice

    def snapshot(self, name: str) -> NameSnapshot:
        """The voice that `name` stands for now, with the changes of other processes."""
        self.refresh()
        with self._lock:
            return NameSnapshot(self._find_by_name(name))

    def refresh(self) -> None:
        """Read what other processes have added or deleted. A folder that cannot be read changes nothing."""
        if self._folder is None:
            return
        with self._disk_lock:
            self._read_changes(self._folder)

    @contextmanager
    def _changing(self, folder: Path, failure: str) -> Iterator[None]:
        """Hold the locks of this process and of the folder, with the changes of other processes read."""
        with self._disk_lock:
            if not folder.is_dir():
                try:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                except OSError as error:
                    raise storage_error(failure, folder, error) from error
            lock = FileLock(folder / _LOCK_FILE, timeout=_LOCK_S, mode=0o600)
            try:
                lock.acquire()
            except Timeout as error:
                raise ApiError(
                    503,
                    "storage_unavailable",
                    f"{failure}: another process has locked the folder of voices; retry later",
                ) from error
            except OSError as error:
                raise storage_error(failure, folder, error) from error
            try:
                self._read_changes(folder)
                yield
            finally:
                lock.release()

    # --- memory; with the lock held -----------------------------------------------------------------------------------

    def _find(self, name: str) -> UploadedVoice | None:
        return self._voices.get(name) or self._find_by_name(name)

    def _find_by_name(self, name: str) -> UploadedVoice | None:
        folded = folded_name(name)
        return next((voice for voice in self._voices.values() if folded_name(voice.name) == folded), None)

    # --- disk; with the disk lock held --------------------------------------------------------------------------------

    def _write(self, folder: Path, voice: UploadedVoice, wav: bytes) -> None:
        """Write both files, or none. The recording comes first: a voice without one is ignored at the next start."""
        wav_path = self.recording(voice)
        record_path = folder / f"{voice.id}.json"
        new_recording = not self._is_used(voice.recording)
        try:
            if new_recording or not wav_path.exists():
                write_file(wav_path, wav)
            record = json.dumps(asdict(voice), ensure_ascii=False, indent=1) + "\n"
            write_file(record_path, record.encode())
        except OSError as error:
            if voice.id not in self._voices:  # only the thread that holds the disk lock changes the keys
                remove_file(record_path)
            if new_recording:
                remove_file(wav_path)
            raise storage_error("the voice cannot be stored", folder, error) from error

    def _remove(self, folder: Path, voice: UploadedVoice) -> None:
        try:
            (folder / f"{voice.id}.json").unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("the voice cannot be deleted", folder, error) from error
        with self._lock:
            del self._voices[voice.id]
        if not self._is_used(voice.recording):
            remove_file(folder / f"{voice.recording}.wav")

    def _is_used(self, recording: str) -> bool:
        with self._lock:
            return any(voice.recording == recording for voice in self._voices.values())

    def _required_folder(self) -> Path:
        if self._folder is None:
            raise ApiError(
                400, "unsupported", "this server does not store uploaded voices: start it with --voices FOLDER"
            )
        return self._folder

    def _load_all(self, folder: Path) -> None:
        """Load the folder at start-up; a folder that cannot be read counts as empty."""
        if not folder.is_dir():
            return
        with self._disk_lock:
            self._read_changes(folder)
            lock = FileLock(folder / _LOCK_FILE, timeout=0, mode=0o600)
            try:
                with lock:  # otherwise another process is writing its temporary files now
                    sweep_temporary_files(folder)
            except (Timeout, OSError) as error:
                log.info("temporary files in the folder of voices are not removed: %s", error)

    def _read_changes(self, folder: Path) -> None:
        """Load new voice files and forget deleted ones. With the disk lock held."""
        try:
            found = {path.stem: path for path in folder.glob(f"{_ID_PREFIX}*.json")} if folder.is_dir() else {}
        except OSError as error:
            log.warning("the folder of uploaded voices cannot be read: %s", error)
            return
        with self._lock:
            for voice_id in self._voices.keys() - found.keys():
                del self._voices[voice_id]
            new = sorted(found.keys() - self._voices.keys() - self._invalid)
        for voice_id in new:
            self._load(found[voice_id])

    def _load(self, path: Path) -> None:
        """Load one voice file; log and ignore it if it is invalid (files may have been edited by hand)."""
        try:
            voice = _parse_record(path)
            if not self.recording(voice).is_file():
                raise ValueError("its recording is missing")
        except FileNotFoundError:  # another process deleted it
            return
        except (OSError, ValueError, TypeError, RecursionError, InputError) as error:
            log.warning("ignoring voice file %s: %s", path, error)
            self._invalid.add(path.stem)
            return
        with self._lock:
            self._voices[voice.id] = voice


def new_voice(name: str, samples: npt.NDArray[np.float32], sample_rate_hz: int, transcript: str) -> UploadedVoice:
    """The record of a new voice with mono `samples` [N]. `InputError` for an invalid name."""
    name = validate_name(name)
    data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
    recording = hashlib.blake2b(data, digest_size=_DIGEST_LENGTH // 2).hexdigest()
    identity = json.dumps([name, transcript, recording]).encode()
    return UploadedVoice(
        id=f"{_ID_PREFIX}{hashlib.blake2b(identity, digest_size=_ID_LENGTH // 2).hexdigest()}",
        name=name,
        transcript=transcript,
        recording=recording,
        seconds=round(len(samples) / sample_rate_hz, 3),
        created_s=int(time.time()),
    )


def _unknown_voice(name: str) -> ApiError:
    return ApiError(404, "unknown_voice", f"no uploaded voice has the id or name {name[:80]!r}", param="voice")


def _parse_record(path: Path) -> UploadedVoice:
    """The voice in a JSON file. Its recording must be named by a digest: a path could lead out of the folder."""
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(UploadedVoice)}:
        raise ValueError("it does not have the fields of a voice")
    voice = UploadedVoice(**values)
    if not all(isinstance(text, str) for text in (voice.id, voice.name, voice.transcript, voice.recording)):
        raise ValueError("its fields have wrong types")
    if not isinstance(voice.created_s, int) or not isinstance(voice.seconds, int | float):
        raise ValueError("its fields have wrong types")
    if voice.id != path.stem or not _is_hex(voice.id.removeprefix(_ID_PREFIX), _ID_LENGTH):
        raise ValueError("its id does not match the file name, or is malformed")
    if not _is_hex(voice.recording, _DIGEST_LENGTH):
        raise ValueError("its recording is not named by a digest")
    validate_name(voice.name)
    return voice


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and _HEX.issuperset(text)


def validate_name(name: str) -> str:
    """The name in composed form (NFC), without surrounding spaces. `InputError` if it is not allowed.

    Letters, marks and digits of every script are allowed. None of the allowed characters needs care in URLs, lists or
    log lines.
    """
    name = unicodedata.normalize("NFC", name.strip())
    if not 1 <= len(name) <= MAX_NAME or not all(map(_is_allowed, name)) or not _may_start(name[0]):
        raise InputError(
            f"invalid voice name {name[:80]!r}: use 1 to {MAX_NAME} letters, digits, underscores, spaces, dots or "
            "dashes, starting with a letter, digit or underscore",
            field="name",
        )
    looks_like_id = name.startswith(_ID_PREFIX) and _is_hex(name.removeprefix(_ID_PREFIX), _ID_LENGTH)
    if name.casefold() in RESERVED_NAMES or looks_like_id:
        raise InputError(f"{name!r} is a reserved name: choose another name", field="name")
    return name


def _may_start(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LN"


def _is_allowed(character: str) -> bool:
    return character in " ._-" or unicodedata.category(character)[0] in "LMN"
