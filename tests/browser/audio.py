"""Audio played by a session of the page, and audio sent by its server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

from tests.browser.chromium import Socket

QUANTUM = 128
"""Samples per render quantum of an audio worklet."""


@dataclass(frozen=True, slots=True)
class Tapped:
    """16-bit samples that the worklet passed to the device, and the wall clock of each quantum."""

    samples: npt.NDArray[np.int16]
    clock_ms: npt.NDArray[np.float64]

    def last_sound_ms(self) -> float:
        """The wall clock of the last quantum with sound."""
        return float(self.clock_ms[np.flatnonzero(self.samples)[-1] // QUANTUM])


def tapped(page: Page, session: int = 0) -> Tapped:
    """Everything played so far. Samples are exact multiples of 1/32768, except in a fade."""
    recorded = page.evaluate("(session) => tapped(session)", session)
    frames = np.array(recorded["frames"])
    assert (np.diff(frames) == QUANTUM).all(), "the tap missed a quantum"
    samples = np.frombuffer(base64.b64decode(recorded["samples"]), "<f4") * 32768
    assert np.abs(samples).max() <= 32768
    return Tapped(np.rint(samples).astype(np.int16), np.array(recorded["clockMs"], np.float64))


def sent(socket: Socket, number: int) -> npt.NDArray[np.int16]:
    """The samples that the server sent for utterance `number`."""
    return np.concatenate([np.zeros(0, np.int16), *_frames(socket, number)])


def messages(socket: Socket, kind: str) -> list[dict[str, object]]:
    """The JSON messages of one type, in both directions."""
    texts = [frame for frame in (*socket.sent, *socket.received) if isinstance(frame, str)]
    return [message for message in map(json.loads, texts) if message["type"] == kind]


def trimmed(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Without leading and trailing silence."""
    sound = np.flatnonzero(samples)
    return samples[sound[0] : sound[-1] + 1] if len(sound) else samples[:0]


def sounding(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Without any zero samples, so that underruns make no difference."""
    return np.extract(samples, samples)


def _frames(socket: Socket, number: int) -> Iterator[npt.NDArray[np.int16]]:
    speaking = -1
    for frame in socket.received:
        if isinstance(frame, bytes):
            if speaking == number:
                yield np.frombuffer(frame, "<i2")
        elif (message := json.loads(frame))["type"] == "audio.start":
            speaking = message["utterance_index"]
