"""AAC encoder (ADTS): pipes PCM through an `ffmpeg` process, an optional dependency.

An `AacEncoder` owns one ffmpeg process and the threads that read its pipes, until `finish`; an encoder that is garbage
collected earlier kills its process. Output lags about two packets behind the input because of the codec's look-ahead.
ADTS frames are self-contained, so there is no container to close.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
import time
import weakref
from importlib.util import find_spec
from typing import IO

from legato.audio.encoding import PacketValidator, Trailer
from legato.errors import GenerationError, UnsupportedError
from legato.types import Packet

DELAY_SAMPLES = 1024
"""Encoder delay: leading silence, which ADTS cannot mark for removal."""

_BITS_PER_S = 96_000
_MAX_BITS_PER_SAMPLE = 4
"""The format allows six bits per sample in mono. At low sample rates this limits the bit rate below `_BITS_PER_S`."""
PIPE_TIMEOUT_S = 10.0
"""Time in which ffmpeg must accept the samples of a packet, and time for its exit after the last one."""


def ffmpeg_path() -> str:
    """Path of ffmpeg: from the PATH, else from the extra `aac`. Raises `UnsupportedError` if there is none."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    if find_spec("imageio_ffmpeg"):
        import imageio_ffmpeg  # from the extra `aac`

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    raise UnsupportedError(
        'aac needs the program ffmpeg, which is not on the PATH: install ffmpeg, or pip install ".[aac]", '
        "or use mp3, opus, flac, wav or pcm",
        field="format",
    )


def command(program: str, sample_rate_hz: int) -> list[str]:
    """The ffmpeg command line: s16le samples on stdin, ADTS frames on stdout, flushed frame by frame."""
    bits_per_s = min(_BITS_PER_S, _MAX_BITS_PER_SAMPLE * sample_rate_hz)
    quiet = ["-nostdin", "-hide_banner", "-loglevel", "error"]
    # No `-fflags nobuffer`: ffmpeg 5 and older then drop the packets that they read while probing the input.
    low_latency = ["-probesize", "32", "-analyzeduration", "0"]
    pcm_input = ["-f", "s16le", "-ar", str(sample_rate_hz), "-ac", "1", "-i", "pipe:0"]
    codec = ["-c:a", "aac", "-b:a", str(bits_per_s), "-threads", "1"]
    output = ["-flush_packets", "1", "-f", "adts", "pipe:1"]
    return [program, *quiet, *low_latency, *pcm_input, *codec, *output]


class AacEncoder:
    """Encodes packets to ADTS frames."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._validator = PacketValidator(sample_rate_hz)
        self._process = subprocess.Popen(
            command(ffmpeg_path(), sample_rate_hz),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        if _POLLS:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._output = _PipeBuffer()
        self._errors = _PipeBuffer()
        self._error_text = b""
        self._readers = [
            _start_reader(self._process.stdout, self._output),
            _start_reader(self._process.stderr, self._errors),
        ]
        # Runs at most once: from `finish`, after an error, or when the encoder is garbage collected.
        self._cleanup = weakref.finalize(self, _kill, self._process, self._readers)

    def encode(self, packet: Packet) -> bytes:
        """Send a packet to ffmpeg; return the output that is available without waiting for it.

        `GenerationError` if ffmpeg fails or does not accept the packet within `PIPE_TIMEOUT_S`.
        """
        self._validator.check(packet)
        self._write(packet.int16().tobytes())
        return self._output.take()

    def finish(self) -> Trailer:
        """Close ffmpeg's input and wait for the remaining output."""
        self._validator.finish()
        if not self._validator.samples:
            self._cleanup()
            return Trailer(b"")
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            status = self._process.wait(PIPE_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"it did not exit within {PIPE_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise self._failure() from error
        for reader in self._readers:
            reader.join()
        if status:
            raise self._failure()
        data = self._output.take()
        self._cleanup()
        return Trailer(data)

    def abort(self) -> None:
        """Kill ffmpeg. A call of `encode` or `finish` in another thread fails at once. Does not wait; idempotent."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        """Write to ffmpeg's input. The pipe does not block, so that a stopped ffmpeg cannot hold this thread."""
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        rest = memoryview(data)
        end_s = time.monotonic() + PIPE_TIMEOUT_S
        try:
            while rest:
                try:
                    rest = rest[os.write(pipe, rest) :]
                except BlockingIOError:
                    if not _wait_until_writable(pipe, end_s - time.monotonic()):
                        raise self._failure(f"it accepted no data for {PIPE_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise self._failure() from error

    def _failure(self, reason: str = "") -> GenerationError:
        """Stop ffmpeg and build the error, with `reason` or the end of its stderr."""
        self._cleanup()
        self._error_text += self._errors.take()  # kept: `finish` after a failed `encode` fails with the same text
        message = reason or self._error_text.decode(errors="replace").strip()
        return GenerationError(f"ffmpeg (AAC encoder) failed: {message[-200:] or 'no error output'}")


_POLLS = hasattr(select, "poll")
"""Whether pipes can be polled. On Windows they cannot, and writes block."""


def _wait_until_writable(pipe: int, timeout_s: float) -> bool:
    """Wait until `pipe` accepts data or is broken; False after `timeout_s`."""
    if timeout_s <= 0:
        return False
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(1000 * timeout_s))


class _PipeBuffer:
    """Thread-safe byte buffer between a pipe's reader thread and the encoder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._bytes += data

    def take(self) -> bytes:
        """Remove and return all buffered bytes."""
        with self._lock:
            data = bytes(self._bytes)
            self._bytes.clear()
        return data


def _start_reader(pipe: IO[bytes] | None, buffer: _PipeBuffer) -> threading.Thread:
    """Start a thread that drains `pipe` into `buffer`, so that ffmpeg never blocks on a full pipe."""
    assert pipe is not None
    source = pipe

    def read() -> None:
        with source:
            while data := source.read1(2**16):  # type: ignore[attr-defined]  # pipes of Popen are buffered readers
                buffer.add(data)

    thread = threading.Thread(target=read, name="legato-aac", daemon=True)
    thread.start()
    return thread


def _kill(process: subprocess.Popen[bytes], readers: list[threading.Thread]) -> None:
    """Kill the process, wait for it and for its readers, and close its stdin."""
    process.kill()
    process.wait()
    for reader in readers:
        reader.join()
    if process.stdin is not None:
        try:
            process.stdin.close()
        except OSError:
            return  # unwritten input cannot be flushed to a dead process
