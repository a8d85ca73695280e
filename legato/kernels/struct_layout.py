"""Compares the C structs of a loaded library with their ctypes mirrors, field by field.

A mirror that differs would make a kernel read and write at wrong addresses. The C side exports tables (`layout.h`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from ctypes import POINTER, Structure, c_char_p, c_int64
from typing import TypeAlias

Layout: TypeAlias = dict[str, dict[str, tuple[int, int]]]
"""Struct name -> field name -> (offset, size) in bytes, in the order of the fields. Field "" is the whole struct."""


class _FieldLayout(Structure):
    _fields_ = (("type", c_char_p), ("field", c_char_p), ("offset", c_int64), ("size", c_int64))


def c_layout(tables: Iterable[Callable[[], object]]) -> Layout:
    """The layout that the functions `tables` of a library export."""
    layout: Layout = {}
    for table in tables:
        table.restype = POINTER(_FieldLayout)  # type: ignore[attr-defined]
        entries = table()
        assert isinstance(entries, ctypes._Pointer)
        index = 0
        while (entry := entries[index]).type is not None:
            layout.setdefault(entry.type.decode(), {})[entry.field.decode()] = (entry.offset, entry.size)
            index += 1
    return layout


def python_layout(structs: Iterable[type[Structure]]) -> Layout:
    """The layout of ctypes structs."""
    layout: Layout = {}
    for struct in structs:
        fields = layout.setdefault(struct.__name__, {"": (0, ctypes.sizeof(struct))})
        for field in struct._fields_:
            descriptor = getattr(struct, field[0])
            fields[field[0]] = (descriptor.offset, descriptor.size)
    return layout


def layout_difference(in_c: Layout, in_python: Layout) -> str | None:
    """The first difference as a sentence, or None if both layouts are equal."""
    for struct in sorted({*in_c, *in_python}):
        if struct not in in_python or struct not in in_c:
            return f"struct {struct} exists only in {'C' if struct in in_c else 'Python'}"
        c_fields, python_fields = in_c[struct], in_python[struct]
        for field in [*c_fields, *(name for name in python_fields if name not in c_fields)]:
            name = f"{struct}.{field}" if field else f"struct {struct}"
            if field not in python_fields or field not in c_fields:
                return f"{name} exists only in {'C' if field in c_fields else 'Python'}"
            if c_fields[field] != python_fields[field]:
                (c_offset, c_size), (offset, size) = c_fields[field], python_fields[field]
                return f"{name} has offset {c_offset} and size {c_size} in C, but {offset} and {size} in Python"
    return None
