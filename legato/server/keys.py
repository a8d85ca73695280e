"""API keys with names: one from the settings, and those of a file that can be read again while the server runs.

`ApiKeys` is owned by the application. The file has one key a line, `NAME KEY`; empty lines and lines that start with
`#` are ignored. The log shows names, never keys.
"""

from __future__ import annotations

import hmac
import logging
import stat
from pathlib import Path

from legato.config.server import ServerConfig
from legato.errors import InputError

log = logging.getLogger("legato.server")

DEFAULT_NAME = "default"
"""Name of the key in the settings."""
MIN_KEY = 8
"""Characters of a key in a file."""


class ApiKeys:
    """The keys that clients may send. Empty if the server requires none."""

    def __init__(self, config: ServerConfig) -> None:
        """`InputError` if the file cannot be read, is malformed or has no key: the server must not start open."""
        self._file = config.api_keys_file
        self._own = {DEFAULT_NAME: config.api_key.encode()} if config.api_key else {}
        self._keys = self._own | (read_keys(self._file) if self._file is not None else {})

    @property
    def required(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys)

    def name_of(self, candidate: str) -> str | None:
        """The name of a key; None if there is no such key.

        Every key is compared, each in constant time, so that response times reveal nothing about the keys.
        """
        sent, found = candidate.encode(), None
        for name, key in self._keys.items():
            if hmac.compare_digest(sent, key):
                found = name
        return found

    def reload(self) -> None:
        """Read the file again. If it is invalid, the keys stay as they are, and the log says why."""
        if self._file is None:
            return
        try:
            self._keys = self._own | read_keys(self._file)
        except InputError as error:
            log.error("the API keys were not reloaded: %s", error)
            return
        log.info("API keys reloaded: %s", ", ".join(self._keys))


def read_keys(path: Path) -> dict[str, bytes]:
    """The keys in a file, by name. `InputError` names the line at fault, but not the key."""
    try:
        text = path.read_text(encoding="ascii")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise InputError(f"the file of API keys {str(path)!r} cannot be read: {reason}", field="api_keys") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("the file of API keys %s can be read by other users: chmod 600 it", path)
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"line {number} of the file of API keys {str(path)!r}"
        if len(words) != 2:
            raise InputError(f"{where} must be NAME KEY", field="api_keys")
        name, key = words
        if name in keys or name == DEFAULT_NAME or key.encode() in keys.values():
            raise InputError(f"{where} repeats a name or a key, or has the name {DEFAULT_NAME!r}", field="api_keys")
        if len(key) < MIN_KEY:
            raise InputError(f"{where} has a key of fewer than {MIN_KEY} characters", field="api_keys")
        keys[name] = key.encode()
    if not keys:
        raise InputError(f"the file of API keys {str(path)!r} has no key", field="api_keys")
    return keys
