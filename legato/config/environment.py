"""Settings from environment variables: native kernels, cache and data folders, API key.

No other module of the package reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NATIVE_VARIABLE = "LEGATO_NATIVE"
"""Set it to 0 to use PyTorch instead of the native CPU kernels."""
API_KEY_VARIABLE = "LEGATO_API_KEY"
"""The server's API key. Unlike a command line option, it is not visible in the process list."""


def native_allowed() -> bool:
    """Whether native kernels may be compiled and loaded."""
    return os.environ.get(NATIVE_VARIABLE, "1") != "0"


def native_folder() -> Path:
    """Cache folder of compiled kernels: `legato/native` in the user's cache folder (XDG: a relative path is ignored).

    `FileNotFoundError` if there is neither a home folder nor `XDG_CACHE_HOME`.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    cache = cache if Path(cache).is_absolute() else ""
    home = Path(cache) if cache else _home()
    if home is None:
        raise FileNotFoundError("there is no cache folder, because this user has no home: set XDG_CACHE_HOME")
    return (home if cache else home / ".cache") / "legato" / "native"


def api_key_from_environment() -> str:
    """The server's API key, or "" if it is not set."""
    return os.environ.get(API_KEY_VARIABLE, "").strip()


def default_voices_folder() -> Path | None:
    """Default folder of uploaded voices: `legato/voices` in the user's data folder (XDG). None without a home."""
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data else _home()
    if home is None:
        return None
    return (home if data else home / ".local" / "share") / "legato" / "voices"


def _home() -> Path | None:
    """The user's home folder; None for a user without one, as in a container that runs under any user id."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def set_default_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables that are not set yet, for libraries and child processes that read them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
