"""The player plays every sample in order, never holds up who makes them, and stops at once; missing parts are named."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from legato.audio.play import Player, open_player
from legato.errors import StateError, UnsupportedError
from tests.audio.packets import RATE_HZ, cut, speechlike


class FakeDevice:
    """A device in a thread of its own that takes 480 samples a call, much faster than real time."""

    latency = 0.0

    def __init__(self, callback: Callable[..., None]) -> None:
        self._callback = callback
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.played = bytearray()
        self.log: list[str] = []

    def _run(self) -> None:
        while self._running.is_set():
            block = bytearray(960)
            self._callback(memoryview(block), 480, None, None)
            self.played += block
            time.sleep(0.0005)

    def start(self) -> None:
        self.log.append("start")
        self._running.set()
        self._thread.start()

    def stop(self) -> None:
        self.log.append("stop")
        self._halt()

    def abort(self) -> None:
        self.log.append("abort")
        self._halt()

    def close(self) -> None:
        self.log.append("close")

    def _halt(self) -> None:
        self._running.clear()
        if self._thread.is_alive():
            self._thread.join()


def player() -> tuple[Player, FakeDevice]:
    devices: list[FakeDevice] = []

    def open_stream(callback: Callable[..., None]) -> FakeDevice:
        devices.append(FakeDevice(callback))
        return devices[0]

    return Player(open_stream, RATE_HZ), devices[0]


def test_every_sample_is_played_once_and_in_order() -> None:
    packets = cut(speechlike(1.0))
    made = b"".join(packet.int16().tobytes() for packet in packets)
    machine, device = player()
    with machine:
        for packet in packets:
            machine.write(packet)
    assert device.log == ["start", "stop", "close"]
    played = bytes(device.played)
    assert played.startswith(made[:1920])
    without_gaps = played.replace(bytes(960), b"")
    assert without_gaps[: len(made)].rstrip(b"\0") == made.replace(bytes(960), b"").rstrip(b"\0")


def test_stopping_drops_what_was_not_played() -> None:
    machine, device = player()
    for packet in cut(speechlike(60.0), (240_000,)):
        machine.write(packet)
    machine.stop()
    machine.stop()
    assert device.log == ["start", "abort", "close"]
    assert len(device.played) < 2 * 30 * RATE_HZ
    with pytest.raises(StateError):
        machine.write(cut(speechlike(0.1))[0])


def test_an_error_while_packets_are_made_stops_the_sound() -> None:
    machine, device = player()

    def broken() -> None:
        with machine:
            machine.write(cut(speechlike(1.0))[0])
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        broken()
    assert "abort" in device.log


def test_closing_without_a_packet_starts_nothing() -> None:
    machine, device = player()
    machine.close()
    assert device.log == ["close"]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UnsupportedError, match=r"legato-tts\[play\]"):
        open_player(RATE_HZ)


def test_a_missing_device_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class PortAudioError(Exception):
        pass

    def refuse(**_how: object) -> None:
        raise PortAudioError("no default output device")

    fake = ModuleType("sounddevice")
    fake.PortAudioError = PortAudioError  # type: ignore[attr-defined]
    fake.RawOutputStream = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    with pytest.raises(UnsupportedError, match="--output"):
        open_player(RATE_HZ)
