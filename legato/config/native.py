"""Where code that was compiled on this machine is kept, and whether it may be compiled at all.

Reads the environment. Knows no compiler.
"""

from __future__ import annotations

import os
from pathlib import Path

SWITCH = "LEGATO_NATIVE"
"""Set to 0, nothing is compiled and torch's own products are used."""


def native_allowed() -> bool:
    """False where the user said so."""
    return os.environ.get(SWITCH, "1") != "0"


def native_folder() -> Path:
    """`legato/native` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "legato" / "native"
