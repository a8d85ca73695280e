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
from legato.engine.machinery import Machinery
from legato.engine.packets import make_packet
from legato.engine.roster import Roster
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark, Part
from legato.engine.stream import Stream
from legato.errors import LegatoError


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
        windows: list[tuple[Stream, Window]] = []
        for stream in sorted(self._roster.streams(), key=lambda each: each.slack_s(now_s)):
            frames = stream.take_window(last_chance=self._last_chance(stream, turn_s)) if stream.leases else []
            if frames:
                stream.timing.mark(Mark.FIRST_WINDOW, now_s)
                windows.append((stream, Window(stream.leases[0], tuple(frames))))
        for batch in batches(windows, codec.rows_per_call):
            call = partial(codec.decode, [window for _, window in batch])
            samples = self._m.timed(self._roster.stats, Part.CODEC, len(batch), call)
            for (stream, window), each in zip(batch, samples, strict=True):
                self._emit(stream, window, each)
        return bool(windows)

    def _last_chance(self, stream: Stream, turn_s: float) -> bool:
        """True when a live listener would run dry before another turn, or no frame will come before more text does."""
        if not self._m.adaptive or stream.demand.pace is not Pace.PACED:
            return False
        waits = any(each.state is SequenceState.WAITING_FOR_TEXT for each in stream.live(1))
        return waits or 0.0 < stream.slack_s(self._m.clock()) < turn_s

    def _emit(self, stream: Stream, window: Window, samples: npt.NDArray[np.float32]) -> None:
        """Hand a packet over, with the finish reason if nothing can follow it."""
        frames = len(window.frames)
        try:
            self._watch(stream, samples, frames)
            last = stream.generation_over and not stream.ready_frames()
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
