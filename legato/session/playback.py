"""KIND 4 of the state: what one client has still to hear, and how far its device has come.

Owns the packets between the engine and the socket, host bytes tagged with their utterance, from connect to disconnect.
Two limits: no more than `buffer_ms` is made ahead of what was heard (by the demand it computes), and no more than
`lead_ms` of it lies unheard at the client. The clock is an argument. Knows no socket, no engine, no text.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from legato.errors import InputError, StateError
from legato.session.events import Audio, Begins, Ends, UtteranceId

ACKNOWLEDGEMENT_GRACE_S = 2.0
"""A client that acknowledges decides itself when an utterance was heard, unless it is silent for this long after."""

ROUNDING_SAMPLES = 1e-6
"""Far below what can be heard and above what floating seconds lose: a whole number of samples stays whole."""


@dataclass(frozen=True, slots=True)
class PlaybackLimits:
    """`buffer_ms`: how far generation may run ahead of the ear. `lead_ms`: how much unheard audio may be at the client
    (0: all there is). `start_ms`: what the client collects before it starts to play. `packet_frames`: the longest
    packet that will come; the buffer must hold it beside `start_ms`, or both sides would wait for each other."""

    sample_rate_hz: int
    frame_samples: int
    buffer_ms: int = 10_000
    lead_ms: int = 0
    start_ms: int = 0
    packet_frames: int = 4

    def __post_init__(self) -> None:
        packet_ms = -(-1000 * self.frame_samples * self.packet_frames // self.sample_rate_hz)
        if self.buffer_ms < self.start_ms + packet_ms:
            raise InputError(
                f"buffer_ms must hold start_ms ({self.start_ms}) and the longest packet ({packet_ms}), "
                f"not {self.buffer_ms}",
                field="buffer_ms",
            )
        if min(self.lead_ms, self.start_ms) < 0:
            raise InputError("lead_ms and start_ms must be 0 or more", field="lead_ms")

    def samples(self, milliseconds: int) -> int:
        """Whole samples in a time."""
        return milliseconds * self.sample_rate_hz // 1000


@dataclass(slots=True)
class Track:
    """One utterance on its way to the ear, in samples. `whole`: nothing follows what was made (or sent)."""

    utterance: UtteranceId
    made: int = 0
    sent: int = 0
    played: int = 0
    made_whole: bool = False
    sent_whole: bool = False
    acknowledged: int = -1
    played_out_s: float = math.inf
    underrun_s: float = 0.0
    items: deque[Begins | Audio | Ends] = field(default_factory=deque)
    """Made and not sent yet, in order."""
    standing_s: float = 0.0
    """How long the device stands still by now: an underrun if more comes, nothing if that was all."""

    @property
    def heard_out(self) -> bool:
        """True when the device has nothing of it left."""
        return self.sent_whole and self.played == self.sent and not self.items


class Playback:
    """The queue of one client and the position of its device.

    The device plays what was sent in order, from the moment `start_ms` of it are there, stands still when it runs dry,
    and goes from one utterance into the next without a gap.
    """

    def __init__(self, limits: PlaybackLimits, now_s: float) -> None:
        self.limits = limits
        self.tracks: deque[Track] = deque()
        self._now_s = now_s
        self._carry = 0.0
        self._running = False
        self._acknowledges = False

    # --- in -----------------------------------------------------------------------------------------------------------

    def open(self, utterance: UtteranceId) -> None:
        """A further utterance, to be heard after all others."""
        self.tracks.append(Track(utterance))

    def put(self, audio: Audio) -> None:
        """Queue the next packet of an utterance, which may come before those of earlier utterances."""
        track, packet = self.track(audio.utterance), audio.packet
        if track.made_whole or packet.first_sample != track.made:
            raise StateError(
                f"a packet of utterance {audio.utterance} starts at sample {packet.first_sample}, "
                f"but {track.made} samples came before it{' and its end' if track.made_whole else ''}"
            )
        if not track.made and packet.sample_count:
            track.items.append(Begins(audio.utterance))
        track.made += packet.sample_count
        if packet.sample_count:
            track.items.append(audio)
        if packet.last:
            if not track.made:
                track.items.append(Begins(audio.utterance))
            assert packet.finish_reason is not None, "the last packet carries the finish reason"
            track.made_whole = True
            track.items.append(Ends(audio.utterance, track.made, packet.finish_reason))

    # --- out ----------------------------------------------------------------------------------------------------------

    def pull(self) -> list[Begins | Audio | Ends]:
        """The next item for the socket, now counted as sent; nothing while there is none or it is too early."""
        track = self._speaker()
        if track is None or self._too_far_ahead(track) > 0:
            return []
        item = track.items.popleft()
        if isinstance(item, Audio):
            track.sent += item.packet.sample_count
            track.underrun_s, track.standing_s = track.underrun_s + track.standing_s, 0.0
        track.sent_whole = track.made_whole and track.sent == track.made
        return [item]

    def _speaker(self) -> Track | None:
        """The utterance whose turn it is, if something of it can be sent: the first one that is not sent to its end."""
        head = next((track for track in self.tracks if not track.sent_whole or track.items), None)
        return head if head is not None and head.items else None

    def _too_far_ahead(self, speaker: Track) -> int:
        """Samples that must be played before the next item may be sent."""
        item = speaker.items[0]
        if not self.limits.lead_ms or not isinstance(item, Audio):
            return 0
        unheard = sum(track.sent - track.played for track in self.tracks)
        if not unheard or not (self._running or self._ready()):
            return 0  # nothing is left to hear (the packet may be longer than the lead), or the client still collects
        return unheard + item.packet.sample_count - self.limits.samples(self.limits.lead_ms)

    def drop(self, utterance: UtteranceId) -> Track:
        """Forget an utterance and what of it was not sent; returns where it stood."""
        track = self.track(utterance)
        self.tracks.remove(track)
        if not self.tracks:
            self._stand_still()
        return track

    def clear(self) -> list[Track]:
        """Forget everything; returns where each utterance stood."""
        tracks = list(self.tracks)
        self.tracks.clear()
        self._stand_still()
        return tracks

    # --- the device ---------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[Track]:
        """Let the device play until `now_s`; returns the utterances that were heard to their end, removed."""
        if now_s < self._now_s:
            raise StateError(f"the clock went back from {self._now_s} s to {now_s} s")
        elapsed_s, self._now_s = now_s - self._now_s, now_s
        if self._starts():
            self._play(elapsed_s)
        done: list[Track] = []
        while self.tracks and self.tracks[0].heard_out and self._is_settled(self.tracks[0]):
            done.append(self.tracks.popleft())
        return done

    def acknowledge(self, utterance: UtteranceId, samples: int) -> None:
        """Correct the device's position by what the client says."""
        self._acknowledges = True
        if all(track.utterance != utterance for track in self.tracks):
            return  # of an utterance that is over
        track = self.track(utterance)
        if not samples and not track.sent:
            return
        if samples > track.sent:
            raise InputError(
                f"played_through_sample is {samples}, but only {track.sent} samples of utterance {utterance} were sent",
                field="played_through_sample",
            )
        for earlier in self.tracks:
            if earlier is track:
                break
            earlier.played = earlier.acknowledged = earlier.sent
        track.acknowledged = max(track.acknowledged, samples)
        track.played = track.acknowledged
        self._running, self._carry = True, 0.0

    def ahead_frames(self, utterance: UtteranceId) -> int:
        """How far an utterance may be made ahead of what was heard of it: not at all before all earlier ones are."""
        ahead = 0
        for track in self.tracks:
            if track.utterance == utterance:
                return max(0, (self.limits.samples(self.limits.buffer_ms) - ahead) // self.limits.frame_samples)
            if not track.made_whole:
                return 0
            ahead += track.made - track.played
        return 0

    def wake_s(self) -> float:
        """When time alone will change something, at the latest; infinity when it will not."""
        rate = self.limits.sample_rate_hz
        wakes = [math.inf]
        if self._running or self._ready():
            left = next((track for track in self.tracks if not track.heard_out and track.sent > track.played), None)
            if left is not None:
                wakes.append(self._now_s + (left.sent - left.played - self._carry) / rate)
        speaker = self._speaker()
        if speaker is not None and (wait := self._too_far_ahead(speaker)) > 0:
            wakes.append(self._now_s + max(wait - self._carry, 1) / rate)
        wakes += [track.played_out_s + ACKNOWLEDGEMENT_GRACE_S for track in self.tracks if track.heard_out]
        return max(min(wakes), self._now_s)

    @property
    def unheard_samples(self) -> int:
        """Everything made and not yet played: here and at the client."""
        return sum(track.made - track.played for track in self.tracks)

    def track(self, utterance: UtteranceId) -> Track:
        """Where an utterance stands."""
        for track in self.tracks:
            if track.utterance == utterance:
                return track
        raise StateError(f"utterance {utterance} is not in the queue")

    def _starts(self) -> bool:
        """Whether the device played during the time that just passed; if not, it may from now on."""
        if self._running:
            return True
        self._running = self._ready()
        return self._running

    def _ready(self) -> bool:
        unheard = sum(track.sent - track.played for track in self.tracks)
        whole = any(track.sent_whole and track.sent > track.played for track in self.tracks)
        return unheard > 0 and (whole or unheard >= self.limits.samples(self.limits.start_ms))

    def _play(self, elapsed_s: float) -> None:
        rate = self.limits.sample_rate_hz
        exact = elapsed_s * rate + self._carry
        budget = math.floor(exact + ROUNDING_SAMPLES)
        self._carry = exact - budget
        for track in self.tracks:
            step = min(budget, track.sent - track.played)
            track.played += step
            budget -= step
            if track.heard_out:
                track.played_out_s = min(track.played_out_s, self._now_s - budget / rate)
                continue
            if budget > 0 and track.played:
                track.standing_s += budget / rate
            break
        if all(track.played == track.sent for track in self.tracks):
            if all(track.heard_out or not track.played for track in self.tracks):
                self._stand_still()
            elif budget > 0:
                self._carry = 0.0

    def _stand_still(self) -> None:
        """Nothing is left to play: the next utterance starts the device anew."""
        self._running, self._carry = False, 0.0

    def _is_settled(self, track: Track) -> bool:
        if not self._acknowledges or track.acknowledged >= track.sent:
            return True
        return self._now_s >= track.played_out_s + ACKNOWLEDGEMENT_GRACE_S
