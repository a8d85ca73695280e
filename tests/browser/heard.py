"""What a session of the page handed to the loudspeaker, and what its server sent for it. Values; owns no page."""

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
"""Samples that an audio worklet is asked for at once."""


@dataclass(frozen=True, slots=True)
class Tapped:
    """16-bit samples as the worklet gave them to the device, each quantum with its wall clock."""

    samples: npt.NDArray[np.int16]
    clock_ms: npt.NDArray[np.float64]

    def last_sound_ms(self) -> float:
        """The wall clock of the last quantum that was not silent."""
        return float(self.clock_ms[np.flatnonzero(self.samples)[-1] // QUANTUM])


def tapped(page: Page, session: int = 0) -> Tapped:
    """Everything so far. The samples are 16-bit ones divided by 32768, exactly, except in a fade."""
    told = page.evaluate("(session) => tapped(session)", session)
    frames = np.array(told["frames"])
    assert (np.diff(frames) == QUANTUM).all(), "the tap missed a quantum"
    samples = np.frombuffer(base64.b64decode(told["samples"]), "<f4") * 32768
    assert np.abs(samples).max() <= 32768
    return Tapped(np.rint(samples).astype(np.int16), np.array(told["clockMs"], np.float64))


def sent(socket: Socket, number: int) -> npt.NDArray[np.int16]:
    """The samples of utterance `number`, as the server sent them."""
    return np.concatenate([np.zeros(0, np.int16), *_frames(socket, number)])


def messages(socket: Socket, kind: str) -> list[dict[str, object]]:
    """The JSON messages of a type, of both sides."""
    texts = [frame for frame in (*socket.sent, *socket.received) if isinstance(frame, str)]
    return [message for message in map(json.loads, texts) if message["type"] == kind]


def trimmed(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Without the silence before and after."""
    sound = np.flatnonzero(samples)
    return samples[sound[0] : sound[-1] + 1] if len(sound) else samples[:0]


def sounding(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Without any silence, so that a pause for want of packets makes no difference."""
    return np.extract(samples, samples)


def _frames(socket: Socket, number: int) -> Iterator[npt.NDArray[np.int16]]:
    speaking = -1
    for frame in socket.received:
        if isinstance(frame, bytes):
            if speaking == number:
                yield np.frombuffer(frame, "<i2")
        elif (message := json.loads(frame))["type"] == "audio.start":
            speaking = message["utterance_index"]
