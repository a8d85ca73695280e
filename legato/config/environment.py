"""Settings from environment variables: native kernels, cache and data folders, API key.

No other module of the package reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

NATIVE_VARIABLE = "LEGATO_NATIVE"
"""Set it to 0 to use PyTorch instead of the native CPU kernels."""
API_KEY_VARIABLE = "LEGATO_API_KEY"
"""The server's API key. Unlike a command line option, it is not visible in the process list."""


def native_allowed() -> bool:
    """Whether native kernels may be compiled and loaded."""
    return os.environ.get(NATIVE_VARIABLE, "1") != "0"


def native_folder() -> Path:
    """Cache folder of compiled kernels: `legato/native` in the user's cache folder (XDG)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "legato" / "native"


def api_key_from_environment() -> str:
    """The server's API key, or "" if it is not set."""
    return os.environ.get(API_KEY_VARIABLE, "").strip()


def default_voices_folder() -> Path:
    """Default folder of uploaded voices: `legato/voices` in the user's data folder (XDG)."""
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data else Path.home() / ".local" / "share") / "legato" / "voices"
