"""Write encoded packets to a file or a pipe.

A `PacketWriter` owns its encoder and output until `close`. The file can be played while it grows; `close` writes the
exact sizes into its header.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from legato.audio.encoders import make_encoder
from legato.audio.formats import AudioFormat, format_from_path
from legato.types import Packet, StreamId


class PacketWriter:
    """Writes one stream. Use it as a context manager, so that the encoding is finished after errors, too."""

    def __init__(self, output: BinaryIO, kind: AudioFormat, sample_rate_hz: int, *, patchable: bool) -> None:
        """`output` is closed by `close`. `patchable`: it can seek back to rewrite its header."""
        self._output = output
        self._patchable = patchable
        self._encoder = make_encoder(kind, sample_rate_hz, patchable=patchable)
        self._closed = False

    def __enter__(self) -> PacketWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, packet: Packet) -> None:
        """Encode and write the next packet, and flush Python's buffers."""
        self._output.write(self._encoder.encode(packet))
        self._output.flush()

    def close(self) -> None:
        """Finish the encoding, write the exact sizes into the header, close the output. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            trailer = self._encoder.finish()
            self._output.write(trailer.data)
            if self._patchable:
                for patch in trailer.patches:
                    self._output.seek(patch.offset)
                    self._output.write(patch.data)
        finally:
            self._output.close()


def open_file(path: Path, sample_rate_hz: int) -> PacketWriter:
    """Open a file for writing, in the format of its extension. An existing file is overwritten."""
    kind = format_from_path(path)
    return PacketWriter(path.open("wb"), kind, sample_rate_hz, patchable=path.is_file())


def encode_samples(samples: npt.NDArray[np.float32], kind: AudioFormat, sample_rate_hz: int) -> bytes:
    """Encode mono float32 samples [N] as a complete file."""
    buffer = _ReadableAfterClose()
    with PacketWriter(buffer, kind, sample_rate_hz, patchable=True) as writer:
        writer.write(Packet(StreamId(0), 0, 0, sample_rate_hz, np.ascontiguousarray(samples, dtype="<f4").tobytes()))
    return buffer.content


class _ReadableAfterClose(io.BytesIO):
    """A buffer whose content remains available after `close`, which `PacketWriter` calls on its output."""

    content = b""

    def close(self) -> None:
        if not self.closed:
            self.content = self.getvalue()
        super().close()
