"""The C kernels of the language model (`layers.c`, `frame.c` and the linear layers) as a library of this process.

The functions take addresses of tensors that the caller keeps alive; see `structs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from dataclasses import dataclass
from functools import lru_cache

from legato.kernels import structs
from legato.kernels.build import THIS_CPU, Unavailable, load_library


@dataclass(frozen=True, slots=True)
class Library:
    """The exported functions. ctypes releases the GIL while they run."""

    layers: Callable[..., object]
    map: Callable[..., object]
    prepared: Callable[..., int]
    frame: Callable[..., int]
    draw: Callable[..., int]
    amx: bool
    """Whether int8 linears with several rows use AMX tiles."""


def kernels_note(*, amx: bool) -> str:
    """Which kernels run, for logs and records."""
    return "native kernels (AMX)" if amx else "native kernels"


@lru_cache
def library(cpu: str = THIS_CPU, *macros: str) -> Library | Unavailable:
    """The library of this process; compiled first if the cache does not hold it. Tests define `macros`."""
    loaded = load_library(cpu, macros, structs=structs.ALL, layout_tables=("legato_lm_layout",))
    if isinstance(loaded, Unavailable):
        return loaded
    loaded.legato_layers.restype = loaded.legato_map.restype = None
    loaded.legato_prepared.restype = loaded.legato_tiles.restype = c_int64
    return Library(
        layers=loaded.legato_layers,
        map=loaded.legato_map,
        prepared=loaded.legato_prepared,
        frame=loaded.legato_frame,
        draw=loaded.legato_draw,
        amx=bool(loaded.legato_tiles()),
    )
