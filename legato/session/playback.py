"""Playback queue of one client (state kind 4, docs/states.md) and an estimate of the client's play position.

A `Playback` belongs to one session, from connect to disconnect. It holds packets as host bytes between the engine and
the socket, and enforces two limits: how far generation runs ahead of playback (`buffer_ms`), and how much unplayed
audio is at the client (`lead_ms`). The current time is an argument.
"""

# The playback model
# ------------------
#
# Every utterance has three positions, in samples from its start:
#
#     0 <= played <= sent <= generated
#
# `generated - sent` is queued here, `sent - played` is buffered by the client, and `generated - played` is what flow
# control bounds. The server knows `generated` and `sent` exactly. It cannot see `played`; it estimates it with a clock
# that models the client's audio device:
#
# - The device starts when it has buffered `start_ms` of audio, or a complete utterance that is shorter.
# - It then plays all sent audio in order, at the sample rate, across utterance boundaries without a gap.
# - If it has played everything that was sent of an unfinished utterance, it pauses, and continues with the next packet.
#   That pause is an underrun, but only if more audio of the same utterance follows: until then it could as well be the
#   end. So the pause is kept as `pause_s` and becomes part of `underrun_s` when the next packet is sent.
# - When nothing is left to play and no utterance is unfinished, the device stops. The next utterance starts it again,
#   with `start_ms` to buffer.
#
# The clock ignores network delay and the device's own output buffer: without acknowledgements `played` is too high by
# that delay. An acknowledgement replaces the estimate (it may move `played` backwards), and the clock continues from
# there. A client that has acknowledged once is expected to acknowledge the end of each utterance, too; if it does not
# within `ACKNOWLEDGEMENT_GRACE_S` of the estimated end, the estimate counts.

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from legato.errors import InputError, LegatoError, StateError
from legato.session.events import AudioEnd, AudioPacket, AudioStart, UtteranceFailed, UtteranceId

PlaybackOutput = AudioStart | AudioPacket | AudioEnd | UtteranceFailed

ACKNOWLEDGEMENT_GRACE_S = 2.0
"""How long an utterance waits for its last acknowledgement, after the clock has reached its end."""

ROUNDING_SAMPLES = 1e-6
"""Added before rounding down to whole samples. Larger than the rounding error of seconds as floats, inaudibly small."""


@dataclass(frozen=True, slots=True)
class PlaybackLimits:
    """Limits of one session; `InputError` if they contradict each other.

    `buffer_ms`: how far generation may run ahead of playback. `lead_ms`: how much unplayed audio may be at the client
    (0: no limit). `start_ms`: how much audio the client buffers before it starts to play. `packet_frames`: the longest
    packet in frames. `buffer_ms` must hold `start_ms` and one packet: otherwise the client waits for more audio while
    generation waits for the client.
    """

    sample_rate_hz: int
    frame_samples: int
    buffer_ms: int = 10_000
    lead_ms: int = 0
    start_ms: int = 0
    packet_frames: int = 4

    def __post_init__(self) -> None:
        packet_ms = math.ceil(1000 * self.frame_samples * self.packet_frames / self.sample_rate_hz)
        if self.buffer_ms < self.start_ms + packet_ms:
            raise InputError(
                f"buffer_ms must hold start_ms ({self.start_ms}) and the longest packet ({packet_ms} ms), "
                f"not {self.buffer_ms}",
                field="buffer_ms",
            )
        if min(self.lead_ms, self.start_ms) < 0:
            raise InputError("lead_ms and start_ms must be 0 or more", field="lead_ms")

    def samples(self, milliseconds: int) -> int:
        """A duration in whole samples, rounded down."""
        return milliseconds * self.sample_rate_hz // 1000


@dataclass(slots=True)
class QueuedUtterance:
    """Positions of one utterance, in samples, and its outputs that are not sent yet."""

    utterance_id: UtteranceId
    generated: int = 0
    sent: int = 0
    played: int = 0
    fully_generated: bool = False
    """True when the last packet is in `generated`."""
    fully_sent: bool = False
    """True when the last packet is in `sent`."""
    failed: bool = False
    """True if the engine failed: no more packets come, and `unsent` holds the failure only."""
    acknowledged: int | None = None
    """The highest position that the client has acknowledged."""
    playback_end_s: float | None = None
    """When the clock reached the end of the audio."""
    underrun_s: float = 0.0
    pause_s: float = 0.0
    """Length of the current pause: an underrun if more audio follows, nothing if the end follows."""
    unsent: deque[PlaybackOutput] = field(default_factory=deque)

    @property
    def at_client(self) -> int:
        """Samples that are sent and not played."""
        return self.sent - self.played

    @property
    def played_to_end(self) -> bool:
        """True when everything is sent, including `AudioEnd`, and played."""
        return self.fully_sent and self.played == self.sent and not self.unsent


class Playback:
    """Queue of the utterances of one client, in playing order, and the playback clock.

    Call `advance` with the current time before any other method: positions are only as recent as the last `advance`.
    """

    def __init__(self, limits: PlaybackLimits, now_s: float) -> None:
        self.limits = limits
        self.queue: deque[QueuedUtterance] = deque()
        self._now_s = now_s
        self._device_started = False
        self._sample_fraction = 0.0
        """Elapsed time that is not a whole sample yet, carried over so that the clock does not lose it."""
        self._client_acknowledges = False

    # --- input from the engine ----------------------------------------------------------------------------------------

    def append_utterance(self, utterance_id: UtteranceId) -> None:
        """Append an utterance to the queue."""
        self.queue.append(QueuedUtterance(utterance_id))

    def append_packet(self, audio: AudioPacket) -> None:
        """Queue the next packet of an utterance. Packets of a later utterance may come first."""
        entry, packet = self.find(audio.utterance_id), audio.packet
        if entry.fully_generated:
            raise StateError(f"utterance {audio.utterance_id} received a packet after its last one")
        if packet.first_sample != entry.generated:
            raise StateError(
                f"a packet of utterance {audio.utterance_id} starts at sample {packet.first_sample}, "
                f"not {entry.generated}"
            )
        # The start is sent with the first audio, or with the end if there is no audio at all.
        if entry.generated == 0 and (packet.sample_count or packet.last):
            entry.unsent.append(AudioStart(audio.utterance_id))
        entry.generated += packet.sample_count
        if packet.sample_count:
            entry.unsent.append(audio)
        if packet.last:
            assert packet.finish_reason is not None, "the last packet carries the finish reason"
            entry.fully_generated = True
            entry.unsent.append(AudioEnd(audio.utterance_id, entry.generated, packet.finish_reason))

    def fail(self, utterance_id: UtteranceId, error: LegatoError) -> None:
        """Drop the unsent audio of an utterance that failed, and queue its failure in its place.

        The failure is sent when all earlier utterances are sent, so that a client learns the ends of its utterances in
        their order. The utterance leaves the queue then.
        """
        entry = self.find(utterance_id)
        entry.generated, entry.fully_generated, entry.failed = entry.sent, True, True
        entry.unsent.clear()
        entry.unsent.append(UtteranceFailed(utterance_id, error))

    # --- output to the client -----------------------------------------------------------------------------------------

    def next_output(self) -> PlaybackOutput | None:
        """Take the next output and count it as sent. None if there is none or `lead_ms` does not allow it."""
        entry = self._sending()
        if entry is None or self._excess_samples(entry) > 0:
            return None
        output = entry.unsent.popleft()
        if isinstance(output, AudioPacket):
            entry.sent += output.packet.sample_count
            # More audio follows the pause, so the pause was an underrun.
            entry.underrun_s += entry.pause_s
            entry.pause_s = 0.0
        if isinstance(output, UtteranceFailed):
            self._remove(entry)
        entry.fully_sent = entry.fully_generated and entry.sent == entry.generated
        return output

    def _sending(self) -> QueuedUtterance | None:
        """The utterance that is being sent, if it has something to send.

        It is the first one that is not completely sent. Later utterances wait for it even while it has nothing to send.
        """
        for entry in self.queue:
            if entry.unsent:
                return entry
            if not entry.fully_sent:
                return None
        return None

    def _excess_samples(self, entry: QueuedUtterance) -> int:
        """By how many samples the next output of `entry` would exceed `lead_ms`; 0 or less if it may be sent."""
        output = entry.unsent[0]
        if not self.limits.lead_ms or not isinstance(output, AudioPacket):
            return 0
        at_client = sum(each.at_client for each in self.queue)
        # An empty client gets the packet even if it is longer than the limit. A client that still buffers `start_ms`
        # gets it, too: it plays nothing before it has that much, so waiting for playback would never end.
        if not at_client or not (self._device_started or self._can_start()):
            return 0
        return at_client + output.packet.sample_count - self.limits.samples(self.limits.lead_ms)

    # --- removal ------------------------------------------------------------------------------------------------------

    def clear(self) -> list[QueuedUtterance]:
        """Remove all utterances and their unsent audio; returns them."""
        removed = list(self.queue)
        self.queue.clear()
        self._stop_device()
        return removed

    def _remove(self, entry: QueuedUtterance) -> None:
        self.queue.remove(entry)
        if not self.queue:
            self._stop_device()

    # --- playback clock -----------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[QueuedUtterance]:
        """Advance the playback clock to `now_s`; removes and returns the utterances that were played to their end."""
        if now_s < self._now_s:
            raise StateError(f"the clock went back from {self._now_s} s to {now_s} s")
        elapsed_s, self._now_s = now_s - self._now_s, now_s
        # Nothing was sent since the previous call, because each send follows an `advance`. A device that can start now
        # could therefore start at the beginning of the interval, and has been playing for all of it.
        if not self._device_started:
            self._device_started = self._can_start()
        if self._device_started:
            self._play(elapsed_s)
        finished: list[QueuedUtterance] = []
        while self.queue and self.queue[0].played_to_end and self._end_confirmed(self.queue[0]):
            finished.append(self.queue.popleft())
        return finished

    def acknowledge(self, utterance_id: UtteranceId, samples: int) -> None:
        """Set the play position to what the client reports. `InputError` if that much was not sent."""
        self._client_acknowledges = True
        if all(entry.utterance_id != utterance_id for entry in self.queue):
            return  # the utterance is over: the acknowledgement is late
        entry = self.find(utterance_id)
        if not samples and not entry.sent:
            return  # says nothing: position 0 of an utterance that is not being sent yet
        if samples > entry.sent:
            raise InputError(
                f"played_through_sample is {samples}, "
                f"but only {entry.sent} samples of utterance {utterance_id} were sent",
                field="played_through_sample",
            )
        # Utterances are played in order, so all earlier ones have been played to their end.
        for earlier in self.queue:
            if earlier is entry:
                break
            earlier.played = earlier.acknowledged = earlier.sent
        # Acknowledgements may overtake each other: the highest one counts. Compared with the clock the client is always
        # right, also if the clock was ahead.
        entry.acknowledged = samples if entry.acknowledged is None else max(entry.acknowledged, samples)
        entry.played = entry.acknowledged
        self._device_started, self._sample_fraction = True, 0.0

    def _can_start(self) -> bool:
        """True if the client has buffered enough to start: `start_ms`, or the rest of a complete utterance."""
        at_client = sum(entry.at_client for entry in self.queue)
        complete = any(entry.fully_sent and entry.at_client for entry in self.queue)
        return at_client > 0 and (complete or at_client >= self.limits.samples(self.limits.start_ms))

    def _play(self, elapsed_s: float) -> None:
        """Let the device play for `elapsed_s`."""
        rate_hz = self.limits.sample_rate_hz
        exact = elapsed_s * rate_hz + self._sample_fraction
        budget = math.floor(exact + ROUNDING_SAMPLES)
        self._sample_fraction = exact - budget
        for entry in self.queue:
            step = min(budget, entry.at_client)
            entry.played += step
            budget -= step
            if entry.played_to_end:
                # What is left of the budget is time after the end. The entry may stay in the queue to wait for its
                # acknowledgement; later calls must not move its end.
                if entry.playback_end_s is None:
                    entry.playback_end_s = self._now_s - budget / rate_hz
                continue  # the next utterance follows without a gap
            if budget > 0 and entry.played:
                entry.pause_s += budget / rate_hz  # before its first sample it is a wait, not a pause
            break
        if any(entry.at_client for entry in self.queue):
            return
        if all(entry.played_to_end or not entry.played for entry in self.queue):
            self._stop_device()
        elif budget > 0:
            # The device pauses within an utterance and continues with a whole sample of the next packet.
            self._sample_fraction = 0.0

    def _stop_device(self) -> None:
        """Nothing is left to play: the next utterance has to buffer `start_ms` again."""
        self._device_started, self._sample_fraction = False, 0.0

    def _end_confirmed(self, entry: QueuedUtterance) -> bool:
        """True if an utterance that is played to its end by the clock may be reported so."""
        if not self._client_acknowledges:
            return True
        if entry.acknowledged is not None and entry.acknowledged >= entry.sent:
            return True
        return self._now_s >= self._grace_end_s(entry)

    @staticmethod
    def _grace_end_s(entry: QueuedUtterance) -> float:
        return math.inf if entry.playback_end_s is None else entry.playback_end_s + ACKNOWLEDGEMENT_GRACE_S

    # --- flow control and timing --------------------------------------------------------------------------------------

    def ahead_frames(self, utterance_id: UtteranceId) -> int:
        """How many frames an utterance may be generated ahead of its own playback.

        `buffer_ms` is shared: unplayed audio of earlier utterances counts, too. While an earlier utterance is still
        being generated the answer is 0, so that the engine serves utterances in playing order.
        """
        earlier_unplayed = 0
        for entry in self.queue:
            if entry.utterance_id == utterance_id:
                free = self.limits.samples(self.limits.buffer_ms) - earlier_unplayed
                return max(0, free // self.limits.frame_samples)
            if not entry.fully_generated:
                return 0
            earlier_unplayed += entry.generated - entry.played
        return 0

    def next_wake_s(self) -> float:
        """The latest time at which `advance` and `next_output` are due; infinity if time alone changes nothing."""
        rate_hz = self.limits.sample_rate_hz
        wakes = [math.inf]
        if self._device_started or self._can_start():
            # The current utterance reaches the end of what was sent.
            playing = next((entry for entry in self.queue if entry.at_client), None)
            if playing is not None:
                wakes.append(self._now_s + (playing.at_client - self._sample_fraction) / rate_hz)
        sending = self._sending()
        if sending is not None and (excess := self._excess_samples(sending)) > 0:
            # Enough is played that `lead_ms` allows the next packet. At least one sample ahead: a fraction that is
            # almost a whole sample would otherwise wake the caller again and again at the same time.
            wakes.append(self._now_s + max(excess - self._sample_fraction, 1) / rate_hz)
        wakes += [self._grace_end_s(entry) for entry in self.queue if entry.played_to_end]
        return max(min(wakes), self._now_s)

    @property
    def unplayed_samples(self) -> int:
        """Samples that are generated and not played, here and at the client."""
        return sum(entry.generated - entry.played for entry in self.queue)

    def find(self, utterance_id: UtteranceId) -> QueuedUtterance:
        """The queue entry of an utterance."""
        for entry in self.queue:
            if entry.utterance_id == utterance_id:
                return entry
        raise StateError(f"utterance {utterance_id} is not in the queue")
