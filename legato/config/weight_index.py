"""Read the index of a checkpoint whose weights are in several files. Holds no state; does not import torch."""

from __future__ import annotations

from pathlib import Path

from legato.config.json_reader import read_json


def weight_parts(index: Path) -> list[str]:
    """Names of the files that an index lists. `ConfigError` with the key unless they are names of files beside it.

    A name with a folder in it is refused, too: an index must not read files outside of its checkpoint.
    """
    table = read_json(index, "it lists the files with the weights").section("weight_map")
    parts: set[str] = set()
    for tensor in table.names():
        part = table.string(tensor)
        plain = Path(part).name == part and part != ".." and "\\" not in part and part.isprintable()
        if not plain or len(part) > 200:
            raise table.error(tensor, "the name of a file in the same folder")
        parts.add(part)
    return sorted(parts)
