"""Read tensors from the safetensors files of a checkpoint folder by name.

The files are memory-mapped and stay open until the caller closes them. `loading` decides which tensor is loaded into
which parameter.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from legato.config.foreign_checkpoints import describe_folder
from legato.config.weight_index import weight_parts
from legato.errors import CheckpointError
from legato.weights import name_mapping as names

STORED_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
"""Supported stored dtypes and their size in bytes."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: `model.safetensors`, or the parts listed in its index."""
    index = folder / f"{names.MAIN_FILE}.index.json"
    if (folder / names.MAIN_FILE).is_file():
        return [folder / names.MAIN_FILE]
    if not index.is_file():
        found = describe_folder(folder)
        if found is not None:
            raise CheckpointError(f"{folder} is no checkpoint: {found}", field="model")
        raise CheckpointError(f"{folder / names.MAIN_FILE} is missing: it contains the weights", field=names.MAIN_FILE)
    parts = weight_parts(index)
    absent = [part for part in parts if not (folder / part).is_file()]
    if absent:
        raise CheckpointError(f"{folder} lacks {', '.join(absent)}, listed in {index.name}", field=index.name)
    return [folder / part for part in parts]


class StoredTensors:
    """The tensors of one or several mapped files, read by name while the files are open."""

    def __init__(self, stack: ExitStack, files: list[Path]) -> None:
        self._reader_of: dict[str, safe_open] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.stored: dict[str, str] = {}
        for file in files:
            try:
                reader = stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{file} is not a complete safetensors file ({error}): download it again", field=file.name
                ) from error
            for name in reader.keys():  # noqa: SIM118  a file handle, not a mapping
                header = reader.get_slice(name)
                self._reader_of[name] = reader
                self.shapes[name] = tuple(header.get_shape())
                self.stored[name] = str(header.get_dtype())

    def read(self, name: str) -> Tensor:
        """The tensor, as a view of the mapped file."""
        tensor: Tensor = self._reader_of[name].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def bytes(self, source: names.Source) -> int:
        """Size of a parameter's tensors in the file, in bytes."""
        return sum(math.prod(self.shapes[name]) * STORED_BYTES[self.stored[name]] for name in source.names)
