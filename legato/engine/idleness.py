"""Idle time of a stream: how long it has been unable to use its slots. Arithmetic only; times are passed in.

Each stream has one `Idleness`. The scheduler parks streams that have been idle for too long.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Idleness:
    """Idle time of one stream.

    Time spent waiting for text is added, and the duration of generated audio is subtracted. A client that sends text at
    the speed of speech therefore has little idle time, while a client that sends a letter now and then becomes idle,
    although each of its waits is short.

    A flow-control pause lasts from the moment when the client's buffer is full until it is half empty. Single frames
    that refill the buffer in between do not end the pause: real-time playback needs one every 80 ms.
    """

    seconds: float = 0.0
    idle: bool = False
    """True while the stream waits for text, or during a flow-control pause."""
    paused: bool = False
    seen_s: float = 0.0
    seen_audio_s: float = 0.0

    def update(
        self,
        now_s: float,
        audio_s: float,
        *,
        waits_for_text: bool,
        may_generate: bool,
        may_resume: bool,
        limit_s: float,
    ) -> None:
        """Add the time since the previous call. `audio_s`: audio generated so far. `limit_s`: maximum of `seconds`.

        `may_generate`: flow control allows another frame. `may_resume`: the client's buffer is at most half full.
        """
        elapsed_s, generated_s = now_s - self.seen_s, audio_s - self.seen_audio_s
        if self.idle:
            self.seconds += elapsed_s
        if not self.paused:
            self.seconds -= generated_s
        self.seconds = min(max(self.seconds, 0.0), limit_s)
        if self.paused and may_resume:
            self.paused, self.seconds = False, 0.0
        self.paused = self.paused or not may_generate
        self.idle = waits_for_text or self.paused
        self.seen_s, self.seen_audio_s = now_s, audio_s

    def restart(self, now_s: float, audio_s: float) -> None:
        """Reset the idle time when the stream gets slots."""
        self.seconds, self.idle, self.paused = 0.0, False, False
        self.seen_s, self.seen_audio_s = now_s, audio_s
