"""How long a text may take to speak, and when speech has plainly gone astray.

Owns the text-scaled frame budget (a sum over characters, so it is the same for text that came in pieces) and the
watchdog, which lives as long as its stream. All figures are frames of 80 ms, the step of every model of this class.
Knows no model, no tensors, no clock.

The budget is a bound, not a guess: about two and a half times a calm reading. It stops a model that does not stop by
itself; a caller's limit takes its place.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from dataclasses import dataclass, field

from legato.errors import NonFiniteError
from legato.flow import FinishReason, Frame
from legato.text.characters import extends, is_space, is_speakable, is_wide

BASE_FRAMES = 24
"""What any text gets: 1.9 s for the attack, one slow syllable and the breath after it."""
WIDE_FRAMES = 4
"""A Chinese, Japanese or Korean character: one syllable, 0.32 s (calm: 0.2 s)."""
DIGIT_FRAMES = 9
"""A digit, because 100 is three syllables and 77 is five."""
CAPITAL_FRAMES = 5
"""A capital letter, because it may be spelt out."""
LETTER_FRAMES = 2
"""Any other letter: 0.16 s (calm: 0.07 s)."""
SIGN_FRAMES = 6
"""A sign that is read as a word (%, &, +, €) or a picture."""
PAUSE_FRAMES = 4
"""A mark that makes a pause, or a line's end."""


def character_frames(char: str) -> int:
    """What one character adds to the budget."""
    if is_wide(char):
        return WIDE_FRAMES
    if is_speakable(char):
        if unicodedata.category(char)[0] == "N":
            return DIGIT_FRAMES
        return CAPITAL_FRAMES if char.isupper() else LETTER_FRAMES
    if is_space(char):
        return PAUSE_FRAMES if char in "\n\f\u2029" else 0
    if extends(char):
        return 1
    return SIGN_FRAMES if unicodedata.category(char)[0] == "S" else PAUSE_FRAMES


def frame_budget(text: str) -> int:
    """The most frames that `text` may take. `frame_budget(a + b)` is the sum of both less one `BASE_FRAMES`.

    '1次' gets 37 frames (3 s), 159 Chinese characters 660 (53 s), 'Hello.' 41 (3.3 s).
    """
    return BASE_FRAMES + sum(map(character_frames, text))


@dataclass(frozen=True, slots=True)
class WatchdogRule:
    """When speech has gone astray. Levels are the root mean square of a frame's samples, full scale 1.

    `silent_frames`: so many frames in a row, each below `silence_floor` (-54 dBFS) or below `silence_ratio` of the
    loudest frame so far (34 dB under it), end the stream: 4 s, twice the longest pause of calm speech.
    `repeat_frames`: the same frames again, all codebooks, for so long (3.2 s) and for `repeat_rounds` rounds of the
    loop; loops of up to `longest_loop_frames` (6 s, a phrase) are seen. `stuck_frames`: codebook 0 alone unchanged for
    so long (6.4 s): no sound of speech lasts that long.
    """

    silent_frames: int = 50
    silence_floor: float = 0.002
    silence_ratio: float = 0.02
    repeat_frames: int = 40
    repeat_rounds: int = 2
    longest_loop_frames: int = 75
    stuck_frames: int = 80


@dataclass(slots=True)
class Watchdog:
    """One stream's watchdog. What it finds is returned as one reason, or none; then it starts afresh.

    Frames are shown when they are drawn, levels when they are decoded, each in order; the two may be apart.
    """

    rule: WatchdogRule = field(default_factory=WatchdogRule)
    _recent: deque[Frame] = field(default_factory=deque)
    _matches: list[int] = field(default_factory=list)
    _stuck: int = 0
    _silent: int = 0
    _loudest: float = 0.0

    def observe_frame(self, frame: Frame) -> list[FinishReason]:
        """Take the next frame: `REPEAT` when the same frames come over and over."""
        rule, recent = self.rule, self._recent
        if not self._matches:
            self._matches = [0] * rule.longest_loop_frames
        self._stuck = self._stuck + 1 if recent and recent[-1][0] == frame[0] else 1
        looping = False
        for period, earlier in enumerate(reversed(recent), start=1):
            matched = self._matches[period - 1] + 1 if earlier == frame else 0
            self._matches[period - 1] = matched
            looping = looping or matched >= max(rule.repeat_frames, rule.repeat_rounds * period)
        recent.append(frame)
        if len(recent) > rule.longest_loop_frames:
            recent.popleft()
        return self._found(FinishReason.REPEAT) if looping or self._stuck >= rule.stuck_frames else []

    def observe_level(self, level: float) -> list[FinishReason]:
        """Take the next decoded frame's level: `SILENCE` when nothing has been heard for too long."""
        if not 0.0 <= level < float("inf"):
            raise NonFiniteError(f"the level of a frame is {level}: its samples are not finite")
        self._loudest = max(self._loudest, level)
        silent = level < max(self.rule.silence_floor, self.rule.silence_ratio * self._loudest)
        self._silent = self._silent + 1 if silent else 0
        return self._found(FinishReason.SILENCE) if self._silent >= self.rule.silent_frames else []

    def _found(self, reason: FinishReason) -> list[FinishReason]:
        self._recent.clear()
        self._matches = []
        self._stuck = self._silent = 0
        return [reason]
