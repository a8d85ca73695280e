"""Progress and summary of one stream: seconds of audio, real-time factor (RTF), time to first audio (TTFA).

A `SpeechMeter` counts the packets of one stream. It reads no clock; times are passed in.
"""

from __future__ import annotations

from legato.types import FinishReason, Packet

FINISH_REASONS = {
    FinishReason.EOS: "the model emitted end of speech",
    FinishReason.TRACK_END: "the end of the text was reached",
    FinishReason.MAX_FRAMES: "--max-frames was reached",
    FinishReason.BUDGET: "the model did not stop within the frame budget of this text",
    FinishReason.SILENCE: "the model generated only silence and did not stop",
    FinishReason.REPEAT: "the model repeated itself and did not stop",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.FAILED: "failed",
}
RUNAWAY = (FinishReason.BUDGET, FinishReason.SILENCE, FinishReason.REPEAT)
"""Finish reasons of a model that did not stop by itself. The audio may end in silence or repetition."""


class SpeechMeter:
    """Counts the packets of one stream that was requested at `requested_s` on the caller's clock."""

    def __init__(self, requested_s: float) -> None:
        self._requested_s = requested_s
        self._now_s = requested_s
        self._first_audio_s: float | None = None
        self.frames = 0
        self.seconds = 0.0

    def add(self, packet: Packet, now_s: float) -> None:
        """Count a packet received at `now_s`."""
        if self._first_audio_s is None:
            self._first_audio_s = now_s - self._requested_s
        self._now_s = now_s
        self.frames += packet.frames
        self.seconds += packet.sample_count / packet.sample_rate_hz

    def summary(self, text_wait_s: float = 0.0) -> str:
        """One line with duration, RTF and TTFA. `text_wait_s`: time spent waiting for input text, which is subtracted.

        RTF is processing time per second of audio; below 1 is faster than real time.
        """
        if self._first_audio_s is None:
            return "no audio yet"
        work_s = max(0.0, self._now_s - self._requested_s - text_wait_s)
        audio = f"{self.seconds:.1f} s of audio in {work_s:.2f} s"
        if self.seconds:
            audio += f" (RTF {work_s / self.seconds:.2f})"
        parts = [audio, f"first audio after {1000 * self._first_audio_s:.0f} ms"]
        if text_wait_s >= 0.005:
            parts.append(f"waited {text_wait_s:.2f} s for text")
        return ", ".join(parts)


def finish_line(reason: FinishReason, frames: int, limit: str) -> str:
    """The finish reason and the frame limit, for --verbose."""
    return f"finished: {reason.value} ({FINISH_REASONS[reason]}) after {frames} frames; limit: {limit}"


def early_stop_warning(reason: FinishReason, frames: int, limit: str) -> str | None:
    """A warning if the speech may be incomplete or may end in silence or repetition; None if it ended normally."""
    if reason is FinishReason.MAX_FRAMES:
        return f"warning: stopped early after {frames} frames: limit of {limit} reached"
    if reason in RUNAWAY:
        return (
            f"warning: stopped early after {frames} frames: {FINISH_REASONS[reason]} ({reason.value}); "
            "the audio may end in silence or repetition, try another --seed"
        )
    return None
