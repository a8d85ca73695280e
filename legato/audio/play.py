"""Play packets on the audio device, through the optional package sounddevice.

A `Player` owns one output stream of the device and the samples not yet played, until `close` or `stop`. The device's
callback thread pulls samples from its buffer, so `write` never blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Protocol

from legato.errors import StateError, UnsupportedError
from legato.types import Packet

BLOCK_S = 0.02
"""Duration of one device callback: at most this much audio is still pulled after `stop`."""


class OutputStream(Protocol):
    """The part of `sounddevice.RawOutputStream` that is used here."""

    latency: float

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Player:
    """Plays one stream of packets. As a context manager it plays to the end, or stops immediately on an error."""

    def __init__(self, open_stream: Callable[[Callable[..., None]], OutputStream], sample_rate_hz: int) -> None:
        self._sample_rate_hz = sample_rate_hz
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._closed = False
        self._drained = threading.Event()
        self._started = False
        self.underrun_samples = 0
        """Samples of silence played because the buffer was empty (underruns)."""
        self._stream = open_stream(self._fill)

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.stop()

    def write(self, packet: Packet) -> None:
        """Append a packet to the buffer without blocking. The first packet starts the device."""
        if packet.sample_rate_hz != self._sample_rate_hz:
            raise StateError(
                f"the player expects packets at {self._sample_rate_hz} Hz, but received {packet.sample_rate_hz} Hz"
            )
        with self._lock:
            if self._closed:
                raise StateError("the player received a packet after close() or stop()")
            self._buffer += packet.int16().tobytes()
        if not self._started:
            self._started = True
            self._stream.start()

    def close(self) -> None:
        """Play the buffered samples to the end, then release the device. Idempotent."""
        with self._lock:
            already_closed = self._closed
            self._closed = True
        if already_closed:
            return
        if self._started:
            while not self._drained.wait(0.05):  # short waits, so that Ctrl-C is handled
                pass
            self._stream.stop()  # returns when the device has played all samples it pulled
        self._stream.close()

    def stop(self) -> None:
        """Discard all samples not yet played, including the device's buffer, and release the device. Idempotent."""
        with self._lock:
            self._buffer.clear()
            already_closed = self._closed
            self._closed = True
        if not already_closed:
            self._stream.abort()
            self._stream.close()

    def _fill(self, out: memoryview, frames: int, _time: object, _status: object) -> None:
        """Device callback, on the device's thread: write `frames` s16le samples to `out`, padded with silence."""
        size = 2 * frames
        with self._lock:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            drained = self._closed and not self._buffer
            if not self._closed:
                self.underrun_samples += (size - len(data)) // 2
        out[:] = data + bytes(size - len(data))
        if drained:
            self._drained.set()


def open_player(sample_rate_hz: int) -> Player:
    """Open the default audio device. Raises `UnsupportedError` if a package, library or device is missing."""
    device = _sounddevice()

    def open_stream(callback: Callable[..., None]) -> OutputStream:
        stream: OutputStream = device.RawOutputStream(
            samplerate=sample_rate_hz,
            channels=1,
            dtype="int16",
            blocksize=round(BLOCK_S * sample_rate_hz),
            callback=callback,
        )
        return stream

    try:
        return Player(open_stream, sample_rate_hz)
    except device.PortAudioError as error:
        raise UnsupportedError(
            f"cannot open an audio device ({error}): write a file with --output instead", field="play"
        ) from error


def device_name() -> str:
    """Name of the default output device. Raises `UnsupportedError` if a package, library or device is missing."""
    device = _sounddevice()
    try:
        return str(device.query_devices(kind="output")["name"])
    except (device.PortAudioError, ValueError) as error:
        raise UnsupportedError(f"no audio output device found ({error})", field="play") from error


def _sounddevice() -> ModuleType:
    try:
        import sounddevice
    except ImportError as error:
        raise UnsupportedError('playback needs the package sounddevice: pip install ".[play]"', field="play") from error
    except OSError as error:  # the package is installed, but not the PortAudio library
        raise UnsupportedError(
            f"playback needs the PortAudio library ({error}): install libportaudio2 or portaudio", field="play"
        ) from error
    module: ModuleType = sounddevice
    return module
