"""Where encoded packets go: a file that ends up exact, or a pipe.

A `PacketWriter` owns its encoder and its sink from the first packet to `close`; the file exists from the first packet
on and can be played while it grows. Knows no model and no terminal.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from legato.audio.encoders import make_encoder
from legato.audio.formats import AudioFormat, format_of_path
from legato.flow import Packet, StreamId


class PacketWriter:
    """Writes one stream. Use it as a context manager: leaving it closes the encoding properly, after errors too."""

    def __init__(self, sink: BinaryIO, kind: AudioFormat, sample_rate_hz: int, *, patchable: bool) -> None:
        """`patchable`: the sink can be written at its start again when all is done. The sink is closed with it."""
        self._sink = sink
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
        """Encode and write the next packet; nothing of it is held back by Python's own buffers."""
        self._sink.write(self._encoder.encode(packet))
        self._sink.flush()

    def close(self) -> None:
        """Finish the encoding, put the exact sizes in place, close the sink. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            ending = self._encoder.finish()
            self._sink.write(ending.tail)
            for patch in ending.patches if self._patchable else ():
                self._sink.seek(patch.offset)
                self._sink.write(patch.data)
        finally:
            self._sink.close()


def open_file(path: Path, sample_rate_hz: int) -> PacketWriter:
    """A writer to a new file, in the format of its ending. An existing file is replaced."""
    kind = format_of_path(path)
    return PacketWriter(path.open("wb"), kind, sample_rate_hz, patchable=path.is_file())


def encode_whole(samples: npt.NDArray[np.float32], kind: AudioFormat, sample_rate_hz: int) -> bytes:
    """A finished encoding of mono float32 samples, as a file would hold it."""
    buffer = _Kept()
    with PacketWriter(buffer, kind, sample_rate_hz, patchable=True) as writer:
        writer.write(Packet(StreamId(0), 0, 0, sample_rate_hz, np.ascontiguousarray(samples, dtype="<f4").tobytes()))
    return buffer.kept


class _Kept(io.BytesIO):
    """A buffer whose content outlives its closing."""

    kept = b""

    def close(self) -> None:
        if not self.closed:
            self.kept = self.getvalue()
        super().close()
