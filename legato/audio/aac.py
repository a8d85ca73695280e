"""AAC in ADTS by an `ffmpeg` process of its own: nothing of it is linked, and it need not be there.

An `AacEncoder` owns one process and the thread that reads it, from its making to `finish`; one that is dropped before
takes its process with it. Bytes come out about two packets after their samples went in, because the codec looks ahead.
Knows no container but ADTS, whose frames stand alone, so that there is nothing to close but the stream itself.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import weakref
from importlib.util import find_spec
from typing import IO

from legato.audio.encoding import Ending, PacketOrder
from legato.errors import GenerationError, UnsupportedError
from legato.flow import Packet

DELAY_SAMPLES = 1024
"""Silence in front of the sound, which ADTS cannot tell a decoder to drop: the codec's own delay."""

_BITS_PER_S = 96_000
_MOST_BITS_PER_SAMPLE = 4
"""The format allows six bits for a mono sample; at low rates that is less than `_BITS_PER_S`."""
_END_S = 30.0


def ffmpeg_path() -> str:
    """The program: on the PATH, or that of the extra `aac`. `UnsupportedError` with the way out where there is none."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    if find_spec("imageio_ffmpeg"):
        import imageio_ffmpeg  # of the extra `aac`

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    raise UnsupportedError(
        "aac needs the program ffmpeg, which is not on the PATH: install it, or pip install 'legato-tts[aac]'; "
        "mp3, opus, flac, wav and pcm need nothing more",
        field="format",
    )


def command(program: str, sample_rate_hz: int) -> list[str]:
    """16 bit samples on standard input, ADTS frames on standard output, each as soon as it is whole."""
    bits_per_s = min(_BITS_PER_S, _MOST_BITS_PER_SAMPLE * sample_rate_hz)
    quiet = ["-nostdin", "-hide_banner", "-loglevel", "error"]
    at_once = ["-fflags", "nobuffer", "-probesize", "32", "-analyzeduration", "0"]
    samples = ["-f", "s16le", "-ar", str(sample_rate_hz), "-ac", "1", "-i", "pipe:0"]
    coded = ["-c:a", "aac", "-b:a", str(bits_per_s), "-threads", "1", "-flush_packets", "1", "-f", "adts", "pipe:1"]
    return [program, *quiet, *at_once, *samples, *coded]


class AacEncoder:
    """Packets in, ADTS out, as they come."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._order = PacketOrder(sample_rate_hz)
        self._process = subprocess.Popen(
            command(ffmpeg_path(), sample_rate_hz),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._coded = _Coded()
        self._errors, self._said = _Coded(), b""
        self._readers = [
            _reading(self._process.stdout, self._coded),
            _reading(self._process.stderr, self._errors),
        ]
        self._over = weakref.finalize(self, _end, self._process, self._readers)

    def encode(self, packet: Packet) -> bytes:
        """What the process has ready by now; it is never waited for."""
        self._order.take(packet)
        self._write(packet.int16().tobytes())
        return self._coded.take()

    def finish(self) -> Ending:
        """Close the input, and wait for all that was still inside."""
        self._order.finish()
        if not self._order.samples:
            self._over()
            return Ending(b"")
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            status = self._process.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failed() from error
        for reader in self._readers:
            reader.join()
        if status:
            raise self._failed()
        tail = self._coded.take()
        self._over()
        return Ending(tail)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed() from error

    def _failed(self) -> GenerationError:
        self._over()
        self._said += self._errors.take()
        said = self._said.decode(errors="replace").strip()
        return GenerationError(f"ffmpeg, which encodes AAC, ended too soon: {said[-200:] or 'it says nothing'}")


class _Coded:
    """Bytes between the thread that reads a pipe and whoever takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._bytes += data

    def take(self) -> bytes:
        with self._lock:
            taken = bytes(self._bytes)
            self._bytes.clear()
        return taken


def _reading(pipe: IO[bytes] | None, into: _Coded) -> threading.Thread:
    """A thread that empties `pipe`, so that the process never waits for its reader."""
    assert pipe is not None
    source = pipe

    def read() -> None:
        with source:
            while data := source.read1(2**16):  # type: ignore[attr-defined]  # pipes of Popen are buffered readers
                into.add(data)

    thread = threading.Thread(target=read, name="legato-aac", daemon=True)
    thread.start()
    return thread


def _end(process: subprocess.Popen[bytes], readers: list[threading.Thread]) -> None:
    """The process is gone when this returns, whatever it was doing."""
    process.kill()
    process.wait()
    for reader in readers:
        reader.join()
    if process.stdin is not None:
        try:
            process.stdin.close()
        except OSError:
            return  # what was still to be written has no reader any more
