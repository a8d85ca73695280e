"""Results of the Python interface: the packets of one utterance (`Stream`) and a complete utterance (`Speech`).

A `Stream` owns one stream of the engine until its last packet was read or it is closed. A `Speech` is a plain value.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from legato.audio.formats import AudioFormat, format_from_path
from legato.audio.play import Player, open_player
from legato.audio.writer import PacketWriter, encode_samples, open_file
from legato.engine.handle import StreamHandle
from legato.engine.stats import StreamTiming
from legato.engine.text_source import TextFeed, TextSource
from legato.errors import StateError
from legato.types import FinishReason, Packet, StreamId


@dataclass(frozen=True, slots=True)
class Speech:
    """A complete utterance: mono float32 samples [N] in [-1, 1], why it ended, and the times of its stages.

    In a notebook it is shown as an audio player.
    """

    samples: npt.NDArray[np.float32]
    sample_rate_hz: int
    frames: int
    finish_reason: FinishReason
    timing: StreamTiming

    @property
    def seconds(self) -> float:
        """Duration of the audio."""
        return len(self.samples) / self.sample_rate_hz

    def save(self, path: str | Path) -> None:
        """Write a file in the format of its suffix: .wav .flac .mp3 .opus .ogg .aac .pcm. Replaces an existing file.

        `UnsupportedError` for another suffix, or where the encoder of the format is not installed.
        """
        path = Path(path)
        format_from_path(path)
        with open_file(path, self.sample_rate_hz) as writer:
            writer.write(self._packet())

    def play(self) -> None:
        """Play on the default audio device and return when playback ends. Needs `pip install ".[play]"`."""
        with open_player(self.sample_rate_hz) as player:
            player.write(self._packet())

    def _repr_html_(self) -> str:
        """An HTML audio player with the samples as an embedded WAV file."""
        wav = base64.b64encode(encode_samples(self.samples, AudioFormat.WAV, self.sample_rate_hz)).decode()
        return f'<audio controls src="data:audio/wav;base64,{wav}"></audio>'

    def _packet(self) -> Packet:
        return Packet(
            stream=StreamId(0),
            first_sample=0,
            frames=self.frames,
            sample_rate_hz=self.sample_rate_hz,
            float32_le=np.ascontiguousarray(self.samples, dtype="<f4").tobytes(),
            last=True,
            finish_reason=self.finish_reason,
        )


class Stream:
    """The packets of one utterance, in order. Iterate with `for` or `async for`; read it once.

    Ending the iteration early, leaving the `with` block, or dropping the object cancels the stream and frees its slot.
    """

    def __init__(self, handle: StreamHandle, notes: tuple[str, ...], sample_rate_hz: int) -> None:
        self.timing = handle.timing
        self.notes = notes
        self.sample_rate_hz = sample_rate_hz
        self._handle = handle
        self._feed: TextFeed | None = None

    def feed(self, text: TextSource) -> None:
        """Provide the text, once: a string, an iterable (read on a thread of its own), or an async iterable.

        An async iterable is read on the running event loop. Without one it is read on a new loop in a thread.
        """
        if self._feed is not None:
            raise StateError("the stream already has its text")
        self._feed = TextFeed(self._handle, text)

    def __iter__(self) -> Iterator[Packet]:
        """Yield packets up to the last one. Raises the error that ended the stream, also one of the text iterator."""
        try:
            for packet in self._handle:
                yield packet
                self._raise_source_error(packet)
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Packet]:
        """The same for an event loop, which is not blocked; no thread is used."""
        try:
            async for packet in self._handle:
                yield packet
                self._raise_source_error(packet)
        finally:
            self.close()

    def speech(self) -> Speech:
        """Read all packets and join them."""
        packets = list(self)
        reason = packets[-1].finish_reason if packets else None
        if reason is None:
            raise StateError("the stream has already been read")
        return Speech(
            samples=np.concatenate([packet.float32() for packet in packets]),
            sample_rate_hz=self.sample_rate_hz,
            frames=sum(packet.frames for packet in packets),
            finish_reason=reason,
            timing=self.timing,
        )

    def save(self, path: str | Path) -> FinishReason:
        """Write packets to a file as they arrive, in the format of its suffix (see `Speech.save`).

        The file is created with the first samples, so a stream that fails before leaves an existing file unchanged.
        """
        path = Path(path)
        format_from_path(path)
        return self._write(lambda: open_file(path, self.sample_rate_hz))

    def play(self) -> FinishReason:
        """Play packets on the default audio device as they arrive and return when playback ends."""
        return self._write(lambda: open_player(self.sample_rate_hz))

    @property
    def budget_frames(self) -> int:
        """The frame limit computed from the text, used where `max_frames` is 0; 0 where speech ends with its text."""
        return self._handle.budget_frames

    def cancel(self) -> None:
        """Stop generating. An iteration in progress ends with an empty last packet."""
        self._handle.cancel()

    def close(self) -> None:
        """Cancel the stream if it has not ended, and stop reading its text. May be called more than once."""
        self._handle.cancel()
        if self._feed is not None:
            self._feed.stop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, open_sink: Callable[[], PacketWriter | Player]) -> FinishReason:
        """Write all samples to a sink that is opened with the first packet; returns the finish reason."""
        sink: PacketWriter | Player | None = None
        reason: FinishReason | None = None
        with ExitStack() as stack:
            for packet in self:
                reason = packet.finish_reason
                if packet.sample_count == 0:  # an empty last packet only carries the finish reason
                    continue
                if sink is None:
                    sink = open_sink()
                    stack.push(sink)
                sink.write(packet)
        if reason is None:
            raise StateError("the stream has already been read")
        return reason

    def _raise_source_error(self, packet: Packet) -> None:
        """After the last packet, raise the error of the text iterator if it caused the end."""
        if packet.last and self._feed is not None and self._feed.error is not None:
            raise self._feed.error
