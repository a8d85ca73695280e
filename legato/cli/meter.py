"""What is told of speech while it is made: packets, seconds of audio, real-time factor, first packet.

Owns the counts of one stream. Pure: the clock's reading is an argument. Knows no terminal.
"""

from __future__ import annotations

from legato.flow import FinishReason, Packet

ENDINGS = {
    FinishReason.EOS: "the model said that it was done",
    FinishReason.TRACK_END: "the text was spoken to its end",
    FinishReason.MAX_FRAMES: "the limit of --max-frames was reached",
    FinishReason.BUDGET: "the model did not stop by itself within the budget of this text",
    FinishReason.SILENCE: "the model fell silent and did not stop by itself",
    FinishReason.REPEAT: "the model repeated itself and did not stop",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.FAILED: "failed",
}
UNEASY = (FinishReason.BUDGET, FinishReason.SILENCE, FinishReason.REPEAT)
"""Ends that a listener should know of: the sound is all there is, but its end is not the model's own."""


class SpeechMeter:
    """Counts the packets of one stream, asked for at `asked_s` on the caller's clock."""

    def __init__(self, asked_s: float) -> None:
        self._asked_s = asked_s
        self._now_s = asked_s
        self._first_packet_s = 0.0
        self.packets = 0
        self.frames = 0
        self.seconds = 0.0

    def take(self, packet: Packet, now_s: float) -> None:
        """Count a packet that was handed over at `now_s`."""
        if not self.packets:
            self._first_packet_s = now_s - self._asked_s
        self._now_s = now_s
        self.packets += 1
        self.frames += packet.frames
        self.seconds += packet.sample_count / packet.sample_rate_hz

    def line(self, waited_s: float = 0.0) -> str:
        """One line on where it stands. `waited_s`: time spent waiting for text, which is no model time.

        The real-time factor is seconds of work for each second of audio: below 1 is faster than speech.
        """
        if not self.packets:
            return "no packet yet"
        parts = [f"{self.packets} packet{'s' * (self.packets > 1)}", f"{self.seconds:.2f} s of audio"]
        if self.seconds:
            parts.append(f"real-time factor {max(0.0, self._now_s - self._asked_s - waited_s) / self.seconds:.2f}")
        parts.append(f"first packet {self._first_packet_s:.2f} s")
        if waited_s >= 0.005:
            parts.append(f"waited {waited_s:.2f} s for text")
        return " | ".join(parts)


def ending_line(reason: FinishReason, frames: int, limit: str) -> str:
    """The last line: why it ended and which limits held."""
    return f"finished: {reason.value} ({ENDINGS[reason]}) after {frames} frames; limit: {limit}"
