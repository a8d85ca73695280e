"""Uploaded voices on disk: content-addressed recordings plus one JSON file per voice.

A `VoiceFolder` is the only writer of its folder while the server runs. A recording is a WAV file named by the digest of
its samples; a voice is a JSON file with its name, transcript and recording digest. Writes are atomic, so a crash leaves
no partial files. Everything downstream is keyed by the digest, never by the name: a name that is reused for another
recording cannot return audio of the old one. Methods block; call them from a thread.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from legato.errors import InputError
from legato.server.errors import ApiError

log = logging.getLogger("legato.server")

_NAME = re.compile(r"[\w][\w .\-]{0,63}")
_ID = re.compile(r"voice_[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{32}")


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
        self._lock = threading.Lock()
        self._voices: dict[str, UploadedVoice] = {}
        if folder is not None and folder.is_dir():
            for path in sorted(folder.glob("voice_*.json")):
                self._load(path)

    def voices(self) -> list[UploadedVoice]:
        """All voices, oldest first."""
        with self._lock:
            return sorted(self._voices.values(), key=lambda voice: (voice.created_s, voice.name))

    def find(self, name: str) -> UploadedVoice | None:
        """The voice with this id or name (case-insensitive)."""
        with self._lock:
            return self._voices.get(name) or self._find_by_name(name)

    def recording(self, voice: UploadedVoice) -> Path:
        """The path of a voice's WAV file."""
        return self._required_folder() / f"{voice.recording}.wav"

    def add(self, name: str, samples: npt.NDArray[np.float32], sample_rate_hz: int, transcript: str) -> UploadedVoice:
        """Store mono `samples` [N] as the voice `name`, replacing a voice with the same name."""
        folder = self._required_folder()
        name = validate_name(name)
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        recording = hashlib.blake2b(data, digest_size=16).hexdigest()
        identity = json.dumps([name, transcript, recording]).encode()
        voice = UploadedVoice(
            id=f"voice_{hashlib.blake2b(identity, digest_size=8).hexdigest()}",
            name=name,
            transcript=transcript,
            recording=recording,
            seconds=round(len(samples) / sample_rate_hz, 3),
            created_s=int(time.time()),
        )
        with self._lock:
            old = self._find_by_name(name)
            if old is None and len(self._voices) >= self._limit:
                raise ApiError(
                    409, "too_many_voices", f"the limit of {self._limit} uploaded voices is reached: delete one first"
                )
            folder.mkdir(parents=True, exist_ok=True)
            # Write to a temporary file and rename it: readers see a complete file or none. The recording comes first,
            # because a voice whose recording is missing is ignored at the next start.
            wav_path = folder / f"{recording}.wav"
            if not wav_path.exists():
                temporary = wav_path.with_suffix(".part")
                soundfile.write(temporary, samples, sample_rate_hz, format="WAV", subtype="FLOAT")
                os.replace(temporary, wav_path)
            json_path = folder / f"{voice.id}.json"
            temporary = json_path.with_suffix(".part")
            temporary.write_text(json.dumps(asdict(voice), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, json_path)
            self._voices[voice.id] = voice
            if old is not None and old.id != voice.id:
                self._remove(old)
        return voice

    def delete(self, name: str) -> UploadedVoice:
        """Delete the voice with this id or name, and its recording unless another voice uses it."""
        with self._lock:
            voice = self._voices.get(name) or self._find_by_name(name)
            if voice is None:
                raise ApiError(
                    404, "unknown_voice", f"no uploaded voice has the id or name {name[:80]!r}", param="voice"
                )
            self._remove(voice)
        return voice

    def _find_by_name(self, name: str) -> UploadedVoice | None:
        folded = name.strip().casefold()
        return next((voice for voice in self._voices.values() if voice.name.casefold() == folded), None)

    def _remove(self, voice: UploadedVoice) -> None:
        folder = self._required_folder()
        (folder / f"{voice.id}.json").unlink(missing_ok=True)
        del self._voices[voice.id]
        if all(other.recording != voice.recording for other in self._voices.values()):
            (folder / f"{voice.recording}.wav").unlink(missing_ok=True)

    def _required_folder(self) -> Path:
        if self._folder is None:
            raise ApiError(
                400, "unsupported", "this server does not store uploaded voices: start it with --voices FOLDER"
            )
        return self._folder

    def _load(self, path: Path) -> None:
        """Load one voice file; log and ignore it if it is invalid (files may have been edited by hand)."""
        try:
            voice = UploadedVoice(**json.loads(path.read_text(encoding="utf-8")))
            if voice.id != path.stem or not _ID.fullmatch(voice.id) or not _DIGEST.fullmatch(voice.recording):
                raise ValueError("its id does not match the file name, or an id is malformed")
            if not isinstance(voice.transcript, str) or not isinstance(voice.created_s, int):
                raise ValueError("its fields have wrong types")
            validate_name(voice.name)
            if not self.recording(voice).is_file():
                raise ValueError("its recording is missing")
        except (OSError, ValueError, TypeError, InputError) as error:
            log.warning("ignoring voice file %s: %s", path, error)
            return
        self._voices[voice.id] = voice


def validate_name(name: str) -> str:
    """Strip and check a voice name. The allowed characters are safe in URLs and lists."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"invalid voice name {name[:80]!r}: use 1 to 64 letters, digits, underscores, spaces, dots or dashes, "
            "starting with a letter, digit or underscore",
            field="name",
        )
    return name
