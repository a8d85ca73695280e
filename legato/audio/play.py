"""Packets -> the sound device, through the optional package sounddevice.

A `Player` owns one output stream of the device and the samples not yet played, from `open_player` to `close` or `stop`.
The device's own thread takes samples as it needs them, so the maker of packets is never held up. Knows no model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Protocol

from legato.errors import StateError, UnsupportedError
from legato.flow import Packet

BLOCK_S = 0.02
"""Length of one call of the device: after `stop`, at most this much is still taken from here."""


class OutputStream(Protocol):
    """What is used of `sounddevice.RawOutputStream`."""

    latency: float

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Player:
    """Plays one stream of packets. As a context manager it plays to the end, or stops at once on an error."""

    def __init__(self, open_stream: Callable[[Callable[..., None]], OutputStream], sample_rate_hz: int) -> None:
        self._sample_rate_hz = sample_rate_hz
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._ended = False
        self._drained = threading.Event()
        self._started = False
        self.underrun_samples = 0
        """Samples of silence that the device played because the next packet had not come."""
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
        """Queue the packet; the device starts with the first one. Never waits for the device."""
        if packet.sample_rate_hz != self._sample_rate_hz:
            raise StateError(f"a packet at {packet.sample_rate_hz} Hz, but the device plays {self._sample_rate_hz} Hz")
        with self._lock:
            if self._ended:
                raise StateError("a packet was given to a player that is closed")
            self._waiting += packet.int16().tobytes()
        if not self._started:
            self._started = True
            self._stream.start()

    def close(self) -> None:
        """Play what is queued, wait for its end, release the device."""
        with self._lock:
            already, self._ended = self._ended, True
        if already:
            return
        if self._started:
            while not self._drained.wait(0.05):  # short waits, so that an interrupt is noticed
                pass
            self._stream.stop()  # returns when the device has played what it took
        self._stream.close()

    def stop(self) -> None:
        """Drop what was not played, here and in the device, and release it. Later calls do nothing."""
        with self._lock:
            self._waiting.clear()
            already, self._ended = self._ended, True
        if not already:
            self._stream.abort()
            self._stream.close()

    def _fill(self, out: memoryview, frames: int, _time: object, _status: object) -> None:
        """The device's callback, in its thread: `frames` s16le samples into `out`."""
        size = 2 * frames
        with self._lock:
            piece = bytes(self._waiting[:size])
            del self._waiting[:size]
            over = self._ended and not self._waiting
            if not self._ended:
                self.underrun_samples += (size - len(piece)) // 2
        out[:] = piece + bytes(size - len(piece))
        if over:
            self._drained.set()


def open_player(sample_rate_hz: int) -> Player:
    """A player on the default sound device. `UnsupportedError` saying what to install, or that there is no device."""
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
            f"no sound device can play ({error}); write a file with --output instead", field="play"
        ) from error


def device_name() -> str:
    """The default output device. `UnsupportedError` where there is none or a part is missing."""
    device = _sounddevice()
    try:
        return str(device.query_devices(kind="output")["name"])
    except (device.PortAudioError, ValueError) as error:
        raise UnsupportedError(f"there is no sound device ({error})", field="play") from error


def _sounddevice() -> ModuleType:
    try:
        import sounddevice
    except ImportError as error:
        raise UnsupportedError(
            'playing needs the package sounddevice: pip install "legato-tts[play]"', field="play"
        ) from error
    except OSError as error:  # the package is there, the library that it loads is not
        raise UnsupportedError(
            f"playing needs the PortAudio library ({error}): install libportaudio2 or portaudio", field="play"
        ) from error
    module: ModuleType = sounddevice
    return module
