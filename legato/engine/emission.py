"""From frames to packets in the client's hands: windows are taken, decoded, watched, numbered and handed over.

Works on the streams of a roster, for a loop. Owns nothing; what a packet holds is decided by `framing` and `packets`.
Knows no talker and no text.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from legato.engine.batches import batches
from legato.engine.decode import Window
from legato.engine.demand import Pace
from legato.engine.framing import Haste
from legato.engine.machinery import Machinery
from legato.engine.packets import make_packet
from legato.engine.roster import Roster
from legato.engine.scheduler import EASY_S
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark, Part
from legato.engine.stream import Stream
from legato.errors import LegatoError
from legato.flow import Frame

_Cut = tuple[Stream, list[tuple[Frame, ...]]]
"""A stream and the frames of each packet in its window."""


class Emission:
    """The second half of a turn."""

    def __init__(self, machinery: Machinery, roster: Roster) -> None:
        self._m = machinery
        self._roster = roster

    def decode(self, turn_s: float) -> bool:
        """Decode at most one window of each stream and hand the packets over, those nearest to running dry first.

        `turn_s`: how long a turn takes. False when there was nothing to decode.
        """
        now_s, codec = self._m.clock(), self._m.codec
        streams = sorted(self._roster.streams(), key=lambda each: each.slack_s(now_s))
        # Beside others short windows are as cheap, since they are decoded together, and nobody waits for a long call.
        easy = self._m.adaptive and len(streams) == 1 and streams[0].slack_s(now_s) > EASY_S
        windows: list[_Cut] = []
        for stream in streams:
            packets = stream.take_window(self._haste(stream, turn_s, easy=easy)) if stream.leases else []
            if packets:
                stream.timing.mark(Mark.FIRST_WINDOW, now_s)
                windows.append((stream, packets))
        for batch in batches(windows, codec.rows_per_call):
            call = partial(codec.decode, [Window(each.leases[0], sum(packets, ())) for each, packets in batch])
            samples = self._m.timed(self._roster.stats, Part.CODEC, len(batch), call)
            for (stream, packets), each in zip(batch, samples, strict=True):
                self._emit(stream, packets, each)
        return bool(windows)

    def _haste(self, stream: Stream, turn_s: float, *, easy: bool) -> Haste:
        """How soon the stream's next window is wanted. `easy`: it is alone, and its listener has plenty in hand.

        It is the last chance when a live listener would run dry before another turn, or no frame will come before more
        text does.
        """
        if easy:
            return Haste.PATIENT if stream.keeps_coming() else Haste.EASY
        if self._m.adaptive and stream.demand.pace is Pace.PACED:
            waits = any(each.state is SequenceState.WAITING_FOR_TEXT for each in stream.live(1))
            if waits or 0.0 < stream.slack_s(self._m.clock()) < turn_s:
                return Haste.LAST_CHANCE
        return Haste.PLAIN

    def _emit(self, stream: Stream, packets: list[tuple[Frame, ...]], samples: npt.NDArray[np.float32]) -> None:
        """Hand the packets of a window over, the finish reason with the last if nothing can follow it."""
        each_frame, start = len(samples) // sum(map(len, packets)), 0
        for number, frames in enumerate(packets):
            end = start + len(frames) * each_frame
            final = number == len(packets) - 1
            if not stream.closed:
                self._emit_packet(stream, len(frames), samples[start:end], final=final)
            start = end

    def _emit_packet(self, stream: Stream, frames: int, samples: npt.NDArray[np.float32], *, final: bool) -> None:
        try:
            self._watch(stream, samples, frames)
            last = final and stream.generation_over and not stream.ready_frames()
            packet = make_packet(
                stream.id,
                samples,
                first_sample=stream.samples,
                frames=frames,
                sample_rate_hz=self._m.sample_rate_hz,
                reasons=[stream.finish_reason()] if last else [],
            )
        except LegatoError as error:
            self._roster.fail(stream, error)
            return
        stream.timing.packet(self._m.clock(), packet.sample_count / self._m.sample_rate_hz, hungry=stream.hungry)
        stream.samples += packet.sample_count
        stream.sent += frames
        stream.packets += 1
        self._roster.stats.frames_made(frames)
        self._roster.hand(stream, packet)

    def _watch(self, stream: Stream, samples: npt.NDArray[np.float32], frames: int) -> None:
        """Show the watchdog how loud each frame is; what it ends is the sequence that speaks now."""
        levels = np.sqrt(np.mean(np.square(samples.reshape(frames, -1)), axis=1))
        for level in levels.tolist():
            for reason in stream.watchdog.observe_level(level):
                for sequence in stream.live(1):
                    if sequence.state is SequenceState.RUNNING:
                        self._roster.end(sequence, reason)
