"""Write files so that they are complete or absent, and report full and read-only folders to clients.

Functions block for as long as the disk does; call them from a thread. They keep no state.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from legato.server.errors import ApiError

log = logging.getLogger("legato.server")

_SUFFIX = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file, sync it and rename it to `path`. `OSError` if it fails; nothing is left then.

    Only the owner may read the file.
    """
    temporary = path.with_name(path.name + _SUFFIX)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError:
        remove_file(temporary)
        raise


def remove_file(path: Path) -> None:
    """Remove a file that is not needed any more, if it exists. A failure is logged: it wastes space, nothing else."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)


def sweep_temporary_files(folder: Path) -> None:
    """Remove what an earlier process that was killed while writing has left."""
    for path in folder.glob(f"*{_SUFFIX}"):
        remove_file(path)


def storage_error(what: str, folder: Path, error: OSError) -> ApiError:
    """507 if the disk is full, else 503; the message has the folder and the reason."""
    log.error("%s in %s: %s", what, folder, error)
    status, code = (507, "storage_full") if error.errno in _FULL else (503, "storage_unavailable")
    reason = (error.strerror or "input/output error").lower()
    return ApiError(status, code, f"{what} in the folder {str(folder)!r}: {reason}")


def _sync_folder(folder: Path) -> None:
    """Make the rename durable. Some file systems cannot sync folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
