"""What this machine can do at most: bytes a second by working set, and products a second by number format.

Measured, not looked up, with the threads that are set: reads by torch's plainest kernels, products by the fastest of
torch's and of those that are compiled for this CPU. Owns its buffers for the time of one measurement. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from legato.models.layers.quantized import to_int8
from legato.models.native.layers import NativeLinear
from legato.models.native.library import Library, Missing, library

Way = Callable[[], object]
"""One product of two square matrices."""
Ways = Callable[[int, torch.device], list[Way]]
"""All ways to make it at a size, in the same order at every size."""

MIB = 2**20
SETS_MIB = (2, 8, 16, 32, 64, 128, 512)
SIZES = (512, 1024, 2048)
"""Sides of the square matrices that are multiplied; the best counts."""
HOPELESS = 4
"""A way that is so many times slower than the best is not tried at a larger size, where it would take minutes."""
SECONDS = 0.1
"""How long one kernel at one size is repeated; the fastest repetition counts."""


@dataclass(frozen=True, slots=True)
class ReadRate:
    """How fast `set_mib` are read over and over."""

    set_mib: int
    bytes_s: float


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """How fast large matrices of `dtype` are multiplied, 2 operations for each product."""

    dtype: str
    flops_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits beside which the figures of steps stand."""

    reads: tuple[ReadRate, ...]
    matrix: tuple[MatrixRate, ...]

    def bytes_s(self, set_bytes: int) -> float:
        """The rate at the largest measured set that is no larger than `set_bytes`: never too low a limit."""
        fitting = [each for each in self.reads if each.set_mib * MIB <= set_bytes]
        return (fitting[-1] if fitting else self.reads[0]).bytes_s

    def flops_s(self, dtype: str) -> float:
        """The rate of `dtype`."""
        return next(each.flops_s for each in self.matrix if each.dtype == dtype)


def measure_ceilings(
    device: torch.device, settle: Callable[[], None], *, sets_mib: tuple[int, ...] = SETS_MIB, seconds: float = SECONDS
) -> Ceilings:
    """Measure `device`. `settle` waits for it."""
    with torch.inference_mode():
        reads = tuple(ReadRate(each, _read_rate(each * MIB, device, settle, seconds)) for each in sets_mib)
        matrix = [MatrixRate("float32", _matrix_rate(_WAYS["float32"], device, settle, seconds, 0.0))]
        least = matrix[0].flops_s  # what every format's numbers can be multiplied as
        for name in ("bfloat16", "int8"):
            matrix.append(MatrixRate(name, _matrix_rate(_WAYS[name], device, settle, seconds, least)))
    return Ceilings(reads, tuple(matrix))


def fastest_s(compute: Callable[[], object], settle: Callable[[], None], seconds: float) -> float:
    """The shortest of all repetitions within `seconds`, after one that does not count; at least three."""
    compute()
    settle()
    best, repeats, until = float("inf"), 0, time.perf_counter() + seconds
    while repeats < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        compute()
        settle()
        best = min(best, time.perf_counter() - began)
        repeats += 1
    return best


def _read_rate(size: int, device: torch.device, settle: Callable[[], None], seconds: float) -> float:
    """Bytes a second: the faster of a sum and a dot product over the same numbers."""
    numbers = torch.ones(size // 4, device=device)
    first, second = numbers.chunk(2)
    kernels = (numbers.sum, lambda: torch.dot(first, second))
    return size / min(fastest_s(each, settle, seconds) for each in kernels)


def _matrix_rate(ways: Ways, device: torch.device, settle: Callable[[], None], seconds: float, least: float) -> float:
    """Operations a second: the best of all ways and sizes, and of `least`."""
    best, slow = least, set[int]()
    for size in SIZES:
        tried = {at: way for at, way in enumerate(ways(size, device)) if at not in slow}
        rates = {at: 2 * size**3 / fastest_s(way, settle, seconds) for at, way in tried.items()}
        best = max(best, *rates.values()) if rates else best
        slow |= {at for at, rate in rates.items() if rate < best / HOPELESS}
    return best


def _by_matmul(dtype: torch.dtype) -> Ways:
    def ways(size: int, device: torch.device) -> list[Way]:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        return [lambda: torch.matmul(a, b)]

    return ways


def _by_int8(size: int, device: torch.device) -> list[Way]:
    a, b = (torch.randint(-100, 100, (size, size), dtype=torch.int8, device=device) for _ in range(2))
    ways: list[Way] = [lambda: torch._int_mm(a, b)]
    found = library() if device.type == "cpu" else Missing("")
    if isinstance(found, Library):
        rows, linear = a.float(), NativeLinear(to_int8(b.float(), None), found)
        ways.append(lambda: linear(rows))
    return ways


_WAYS: dict[str, Ways] = {
    "float32": _by_matmul(torch.float32),
    "bfloat16": _by_matmul(torch.bfloat16),
    "int8": _by_int8,
}
