"""How long a stream has been unable to use its slots. Arithmetic only; time is an argument.

An `Idleness` belongs to one stream. It decides nothing: the scheduler parks streams that have been idle for too long.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Idleness:
    """Idle time of one stream.

    A wait for text counts, minus the audio that is generated in between. So a client that writes as fast as it speaks
    is never idle for long, and one that sends a letter now and then is, although none of its waits is long.

    A pause by flow control counts as one from the moment when the client's buffer is full until it is half empty.
    Frames that fill the buffer up in between do not end it: a stream that plays in real time generates one every 80 ms.
    """

    seconds: float = 0.0
    idle: bool = False
    """True while the stream cannot use its slots, or only fills up a buffer that was full."""
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
        """Account for the time since the previous call. `audio_s`: generated so far. `limit_s`: nothing counts beyond.

        `may_generate`: flow control allows a frame; `may_resume`: also when the client's buffer must be half empty.
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
        """The stream has been given slots."""
        self.seconds, self.idle, self.paused = 0.0, False, False
        self.seen_s, self.seen_audio_s = now_s, audio_s
