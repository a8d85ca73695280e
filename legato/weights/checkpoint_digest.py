"""Digest of the files of a checkpoint that determine its output: weights, configuration and tokenizer.

It depends on names and contents only, not on where the folder is or how the files were obtained.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from legato.config.codec_checkpoint import CODEC_FOLDER, codec_location
from legato.weights.safetensors_reader import weight_files

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "merges.txt")
_BLOCK_BYTES = 2**22


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 of the list of digests of the files, as `sha256sum` prints it, in order of name.

    The files are those that loading reads. Reads all of them, about a second per GiB; the digest of a file that has not
    changed since is remembered by this process. Raises `CheckpointError` if the checkpoint is incomplete.
    """
    codec = codec_location(folder)
    named = {path.name: path for path in _files(folder)}
    named |= {f"{CODEC_FOLDER}/{path.name}": path for path in _files(codec)}
    lines = (f"{_file_digest(path)}  {name}\n" for name, path in sorted(named.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return [*weight_files(folder), *(folder / name for name in _SETTINGS if (folder / name).is_file())]


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _content_digest(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=256)
def _content_digest(path: Path, _size: int, _modified_ns: int, _inode: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
