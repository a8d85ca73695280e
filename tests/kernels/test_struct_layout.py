"""The comparison of C structs with their ctypes mirrors, which runs whenever a kernel library is loaded."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int64, c_void_p
from pathlib import Path

import pytest

from legato.kernels import build, structs
from legato.kernels.build import THIS_CPU, Unavailable, load_library
from legato.kernels.library import library
from legato.kernels.struct_layout import layout_difference, python_layout

needs_kernels = pytest.mark.skipif(isinstance(library(), Unavailable), reason="no kernels on this machine")


class Stack(Structure):
    """The mirror of `Stack` with its last two fields exchanged."""

    _fields_ = (*structs.Stack._fields_[:-2], structs.Stack._fields_[-1], structs.Stack._fields_[-2])


class First(Structure):
    """The mirror of `First` without its last field."""

    _fields_ = structs.First._fields_[:-1]


class Settings(Structure):
    """The mirror of `Settings` with a field of another name."""

    _fields_ = (("temperature", c_void_p), ("top_k", c_void_p), ("nucleus", c_void_p))


def load(mirrors: tuple[type[Structure], ...]) -> object:
    return load_library(THIS_CPU, structs=mirrors, layout_tables=("legato_lm_layout",))


@needs_kernels
def test_library_loads_if_all_mirrors_match() -> None:
    assert not isinstance(load(structs.ALL), Unavailable)


@needs_kernels
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Stack, "Stack.head_dim has offset 48 and size 8 in C, but 56 and 8 in Python"),
        (First, "struct First has offset 0 and size 40 in C, but 0 and 32 in Python"),
        (Settings, "Settings.top_p exists only in C"),
    ],
)
def test_library_with_a_wrong_mirror_is_not_used(wrong: type[Structure], message: str) -> None:
    mirrors = tuple(wrong if each.__name__ == wrong.__name__ else each for each in structs.ALL)
    assert load(mirrors) == Unavailable(f"the struct layout differs from C: {message}")


@needs_kernels
def test_library_with_a_missing_mirror_is_not_used() -> None:
    loaded = load(structs.ALL[:-1])
    assert isinstance(loaded, Unavailable)
    assert loaded.reason.endswith("struct First exists only in C")


def test_a_size_difference_is_reported() -> None:
    class Pair(Structure):
        _fields_ = (("count", c_int64), ("eps", c_float))

    in_python = python_layout([Pair])
    assert in_python == {"Pair": {"": (0, 16), "count": (0, 8), "eps": (8, 4)}}
    in_c = {"Pair": {"": (0, 16), "count": (0, 8), "eps": (8, 8)}}
    assert layout_difference(in_c, in_python) == "Pair.eps has offset 8 and size 8 in C, but 8 and 4 in Python"
    assert layout_difference(in_python, in_python) is None


def test_headers_do_not_include_each_other_in_a_cycle() -> None:
    folder = Path(build.__file__).parent
    included = {
        path.name: {line.split('"')[1] for line in path.read_text().splitlines() if line.startswith('#include "')}
        for path in folder.glob("*.[ch]")
    }
    assert included["linear_int8.c"] == {"linear.h", "tiles.h"}
    while included:
        free = [name for name, needs in included.items() if not needs & included.keys()]
        assert free, f"include cycle among {sorted(included)}"
        for name in free:
            del included[name]
