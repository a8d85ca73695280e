"""Uploaded voices on disk: content-addressed recordings plus one JSON file per voice.

A `VoiceFolder` is the only writer of its folder while the server runs. A recording is a WAV file named by the digest of
its samples; a voice is a JSON file with its name, transcript and recording digest. Files are written completely, synced
and renamed, so that a crash leaves no partial files; only the owner may read them. Everything downstream is keyed by
the digest, never by the name: a name that is reused for another recording cannot return audio of the old one.

`add`, `delete` and `recording_bytes` use the disk and may block for as long as it does; call them from a thread.
`voices` and `find` only look into memory. They may be called on the event loop: no lock that they take is held during
disk operations.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
import time
import unicodedata
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

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


@dataclass(frozen=True, slots=True)
class UploadedVoice:
    """An uploaded voice. `recording`: digest of its samples. `transcript`: the text spoken in the recording."""

    id: str
    name: str
    transcript: str
    recording: str
    seconds: float
    created_s: int


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
        if folder is not None:
            self._load_all(folder)

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

    def add(self, name: str, samples: npt.NDArray[np.float32], sample_rate_hz: int, transcript: str) -> UploadedVoice:
        """Store mono `samples` [N] as the voice `name`, replacing a voice with the same name.

        `ApiError` 409 if there are too many voices, 507 or 503 if the folder cannot take them.
        """
        folder = self._required_folder()
        name = validate_name(name)
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        recording = hashlib.blake2b(data, digest_size=_DIGEST_LENGTH // 2).hexdigest()
        identity = json.dumps([name, transcript, recording]).encode()
        voice = UploadedVoice(
            id=f"{_ID_PREFIX}{hashlib.blake2b(identity, digest_size=_ID_LENGTH // 2).hexdigest()}",
            name=name,
            transcript=transcript,
            recording=recording,
            seconds=round(len(samples) / sample_rate_hz, 3),
            created_s=int(time.time()),
        )
        wav = io.BytesIO()
        soundfile.write(wav, samples, sample_rate_hz, format="WAV", subtype="FLOAT")
        with self._disk_lock:
            with self._lock:
                old = self._find_by_name(name)
                if old is None and len(self._voices) >= self._limit:
                    raise ApiError(
                        409,
                        "too_many_voices",
                        f"the limit of {self._limit} uploaded voices is reached: delete one first",
                    )
            self._write(folder, voice, wav.getvalue())
            with self._lock:
                self._voices[voice.id] = voice
            if old is not None and old.id != voice.id:
                self._remove(folder, old)
        return voice

    def delete(self, name: str) -> UploadedVoice:
        """Delete the voice with this id or name, and its recording unless another voice uses it."""
        with self._disk_lock:
            voice = self.find(name)
            if voice is None:
                raise ApiError(
                    404, "unknown_voice", f"no uploaded voice has the id or name {name[:80]!r}", param="voice"
                )
            self._remove(self._required_folder(), voice)
        return voice

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
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if new_recording or not wav_path.exists():
                write_file(wav_path, wav)
            record = json.dumps(asdict(voice), ensure_ascii=False, indent=1) + "\n"
            write_file(record_path, record.encode())
        except OSError as error:
            if voice.id not in self._voices:  # only this thread, which holds the disk lock, changes the keys
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
        try:
            paths = sorted(folder.glob(f"{_ID_PREFIX}*.json")) if folder.is_dir() else []
        except OSError as error:
            log.warning("the folder of uploaded voices cannot be read: %s", error)
            return
        sweep_temporary_files(folder)
        for path in paths:
            self._load(path)

    def _load(self, path: Path) -> None:
        """Load one voice file; log and ignore it if it is invalid (files may have been edited by hand)."""
        try:
            voice = _parse_record(path)
            if not self.recording(voice).is_file():
                raise ValueError("its recording is missing")
        except (OSError, ValueError, TypeError, RecursionError, InputError) as error:
            log.warning("ignoring voice file %s: %s", path, error)
            return
        self._voices[voice.id] = voice


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
