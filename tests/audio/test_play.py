"""Player: plays every sample in order, never blocks `write`, stops immediately; clear errors for missing parts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from legato.audio.play import Player, open_player
from legato.errors import StateError, UnsupportedError
from tests.audio.packets import RATE_HZ, speechlike, split_packets


class FakeDevice:
    """A device thread that pulls 480 samples per call, much faster than real time."""

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


def make_player() -> tuple[Player, FakeDevice]:
    devices: list[FakeDevice] = []

    def open_stream(callback: Callable[..., None]) -> FakeDevice:
        devices.append(FakeDevice(callback))
        return devices[0]

    return Player(open_stream, RATE_HZ), devices[0]


def test_every_sample_is_played_once_and_in_order() -> None:
    packets = split_packets(speechlike(1.0))
    expected = b"".join(packet.int16().tobytes() for packet in packets)
    player, device = make_player()
    with player:
        for packet in packets:
            player.write(packet)
    assert device.log == ["start", "stop", "close"]
    played = bytes(device.played)
    assert played.startswith(expected[:1920])
    without_gaps = played.replace(bytes(960), b"")
    assert without_gaps[: len(expected)].rstrip(b"\0") == expected.replace(bytes(960), b"").rstrip(b"\0")


def test_stop_discards_unplayed_samples() -> None:
    player, device = make_player()
    for packet in split_packets(speechlike(60.0), (240_000,)):
        player.write(packet)
    player.stop()
    player.stop()
    assert device.log == ["start", "abort", "close"]
    assert len(device.played) < 2 * 30 * RATE_HZ
    with pytest.raises(StateError):
        player.write(split_packets(speechlike(0.1))[0])


def test_exception_stops_playback() -> None:
    player, device = make_player()

    def broken() -> None:
        with player:
            player.write(split_packets(speechlike(1.0))[0])
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        broken()
    assert "abort" in device.log


def test_close_without_packets_does_not_start_the_device() -> None:
    player, device = make_player()
    player.close()
    assert device.log == ["close"]


def test_error_without_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UnsupportedError, match=r"\.\[play\]"):
        open_player(RATE_HZ)


def test_error_without_device_suggests_output_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
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
