"""Uploaded voices on disk: recordings by their content, and beside them what they are called. No pickle, no code.

A `VoiceFolder` owns one folder for as long as the server runs and is its only writer. A recording is a WAV file named
by the digest of its samples; a voice is a JSON file that names a recording, a transcript and a name. Writes are atomic,
so a crash leaves whole files. Blocking; called from threads. Knows no model and no cache: what a voice sounds like is
decided by its content alone, so that a name that is given to another recording cannot sound like the old one.
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
class KeptVoice:
    """An uploaded voice: its id and name, what is said in its recording, and which recording that is."""

    id: str
    name: str
    transcript: str
    recording: str
    seconds: float
    created_s: int


class VoiceFolder:
    """The voices in one folder; without a folder there are none, and none can be kept."""

    def __init__(self, folder: Path | None, *, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._voices: dict[str, KeptVoice] = {}
        if folder is not None and folder.is_dir():
            for path in sorted(folder.glob("voice_*.json")):
                self._read(path)

    def kept(self) -> list[KeptVoice]:
        """All voices, the oldest first."""
        with self._lock:
            return sorted(self._voices.values(), key=lambda voice: (voice.created_s, voice.name))

    def find(self, name: str) -> KeptVoice | None:
        """The voice with this id, or this name in any case."""
        with self._lock:
            return self._voices.get(name) or self._named(name)

    def recording(self, voice: KeptVoice) -> Path:
        """The WAV file of a voice."""
        return self._required() / f"{voice.recording}.wav"

    def keep(self, name: str, samples: npt.NDArray[np.float32], sample_rate_hz: int, transcript: str) -> KeptVoice:
        """Keep mono `samples` as the voice `name`; one of that name is replaced."""
        folder = self._required()
        name = checked_name(name)
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        recording = hashlib.blake2b(data, digest_size=16).hexdigest()
        identity = json.dumps([name, transcript, recording]).encode()
        voice = KeptVoice(
            id=f"voice_{hashlib.blake2b(identity, digest_size=8).hexdigest()}",
            name=name,
            transcript=transcript,
            recording=recording,
            seconds=round(len(samples) / sample_rate_hz, 3),
            created_s=int(time.time()),
        )
        with self._lock:
            old = self._named(name)
            if old is None and len(self._voices) >= self._limit:
                raise ApiError(409, "too_many_voices", f"{self._limit} voices are kept already; delete one first")
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / f"{recording}.wav"
            if not target.exists():
                part = target.with_suffix(".part")
                soundfile.write(part, samples, sample_rate_hz, format="WAV", subtype="FLOAT")
                os.replace(part, target)
            record = folder / f"{voice.id}.json"
            part = record.with_suffix(".part")
            part.write_text(json.dumps(asdict(voice), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            os.replace(part, record)
            self._voices[voice.id] = voice
            if old is not None and old.id != voice.id:
                self._remove(old)
        return voice

    def delete(self, name: str) -> KeptVoice:
        """Forget the voice with this id or name, and its recording if no other voice is made of it."""
        with self._lock:
            voice = self._voices.get(name) or self._named(name)
            if voice is None:
                raise ApiError(404, "unknown_voice", f"there is no uploaded voice {name!r}", param="voice")
            self._remove(voice)
        return voice

    def _named(self, name: str) -> KeptVoice | None:
        wanted = name.strip().casefold()
        return next((voice for voice in self._voices.values() if voice.name.casefold() == wanted), None)

    def _remove(self, voice: KeptVoice) -> None:
        folder = self._required()
        (folder / f"{voice.id}.json").unlink(missing_ok=True)
        del self._voices[voice.id]
        if all(other.recording != voice.recording for other in self._voices.values()):
            (folder / f"{voice.recording}.wav").unlink(missing_ok=True)

    def _required(self) -> Path:
        if self._folder is None:
            raise ApiError(400, "unsupported", "this server keeps no voices: start it with --voices FOLDER")
        return self._folder

    def _read(self, path: Path) -> None:
        try:
            voice = KeptVoice(**json.loads(path.read_text(encoding="utf-8")))
            if voice.id != path.stem or not _ID.fullmatch(voice.id) or not _DIGEST.fullmatch(voice.recording):
                raise ValueError("its ids are not those of its file")
            if not isinstance(voice.transcript, str) or not isinstance(voice.created_s, int):
                raise ValueError("its fields have wrong types")
            checked_name(voice.name)
            if not self.recording(voice).is_file():
                raise ValueError("its recording is missing")
        except (OSError, ValueError, TypeError, InputError) as error:
            log.warning("the voice file %s is left out: %s", path, error)
            return
        self._voices[voice.id] = voice


def checked_name(name: str) -> str:
    """A name that can stand in a URL and a list: letters, digits, blanks and . _ - in it, 64 at most."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"a voice's name has 1 to 64 letters, digits, blanks, dots, dashes or underscores, not {name[:80]!r}",
            field="name",
        )
    return name
