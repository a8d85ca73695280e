"""CPUs whose compiled code every x86 with AVX2 can run, and this one without AMX tiles."""

from dataclasses import replace
from typing import TypeVar

from legato.kernels.build import THIS_CPU
from legato.kernels.codec_library import CodecLibrary
from legato.kernels.library import Library

OLDER = ("x86-64", "x86-64-v3")
"""As the compiler calls them: vectors of 4 and of 8 numbers."""
NARROWEST = OLDER[0]
NO_TILES = "this one without tiles"

Made = TypeVar("Made", Library, CodecLibrary)


def compiler_name(cpu: str) -> str:
    """The compiler's name of one of these."""
    return THIS_CPU if cpu == NO_TILES else cpu


def as_wanted(made: Made, cpu: str) -> Made:
    """The library for one of these, of which there is one with and without tiles."""
    return replace(made, amx=False) if cpu == NO_TILES else made
