"""Frame budget of a text, and a watchdog that stops streams with repeated or silent frames.

The budget limits the frames of models that fail to stop by themselves; a limit in the request replaces it. It is a sum
over characters, so it does not depend on how text is split, and is about 2.5 times the length of slow speech. Each
stream has its own `Watchdog`. All frame counts assume 80 ms frames, which all supported models have.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from dataclasses import dataclass, field

from legato.errors import NonFiniteError
from legato.text.characters import extends, is_space, is_speakable, is_wide
from legato.types import FinishReason, Frame

BASE_FRAMES = 24
"""Added once for every text: 1.9 s for the onset, one slow syllable and the pause after it."""
WIDE_FRAMES = 4
"""A Chinese, Japanese or Korean character: one syllable, 0.32 s (slow speech: 0.2 s)."""
DIGIT_FRAMES = 9
"""A digit: 100 has three syllables, 77 has five."""
CAPITAL_FRAMES = 5
"""A capital letter, which may be spelled out."""
LETTER_FRAMES = 2
"""Any other letter: 0.16 s (slow speech: 0.07 s)."""
SIGN_FRAMES = 6
"""A symbol that is read as a word (%, &, +, €), or an emoji."""
PAUSE_FRAMES = 4
"""A punctuation mark or line break that makes a pause."""


def character_frames(char: str) -> int:
    """Budget of one character."""
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
    """Maximum number of frames for `text`. `frame_budget(a + b)` is the sum of both minus one `BASE_FRAMES`.

    '1次' gets 37 frames (3 s), 159 Chinese characters 660 (53 s), 'Hello.' 41 (3.3 s).
    """
    return BASE_FRAMES + sum(map(character_frames, text))


@dataclass(frozen=True, slots=True)
class WatchdogRule:
    """Limits of the watchdog. Levels are the RMS of a frame's samples, full scale 1.

    `silent_frames`: maximum run of silent frames (4 s, twice the longest pause in slow speech). A frame is silent below
    `silence_floor` (-54 dBFS) or below `silence_ratio` of the loudest frame so far (-34 dB).
    `repeat_frames`, `repeat_rounds`: a loop of identical frames is reported after both this many frames (3.2 s) and
    this many repetitions. `longest_loop_frames`: longest period of a loop that is detected (6 s, a phrase).
    `stuck_frames`: maximum run of frames with the same codebook 0 (6.4 s, longer than any speech sound).
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
    """Detects loops and silence in one stream. Its methods return a finish reason or None; a reason resets the state.

    Frames are observed when they are sampled, levels when they are decoded. Both arrive in order; levels arrive later.
    """

    rule: WatchdogRule = field(default_factory=WatchdogRule)
    _recent: deque[Frame] = field(default_factory=deque)
    _matches: list[int] = field(init=False)
    """Item p - 1: number of consecutive frames that equal the frame p frames earlier."""
    _stuck: int = 0
    _silent: int = 0
    _loudest: float = 0.0

    def __post_init__(self) -> None:
        self._matches = [0] * self.rule.longest_loop_frames

    def observe_frame(self, frame: Frame) -> FinishReason | None:
        """Process the next sampled frame. Returns `REPEAT` if frames repeat or codebook 0 does not change."""
        rule, recent = self.rule, self._recent
        self._stuck = self._stuck + 1 if recent and recent[-1][0] == frame[0] else 1
        looping = False
        for period, earlier in enumerate(reversed(recent), start=1):
            matched = self._matches[period - 1] + 1 if earlier == frame else 0
            self._matches[period - 1] = matched
            looping = looping or matched >= max(rule.repeat_frames, rule.repeat_rounds * period)
        recent.append(frame)
        if len(recent) > rule.longest_loop_frames:
            recent.popleft()
        if looping or self._stuck >= rule.stuck_frames:
            self._reset()
            return FinishReason.REPEAT
        return None

    def observe_level(self, level: float) -> FinishReason | None:
        """Process the level of the next decoded frame. Returns `SILENCE` after too many silent frames."""
        if not 0.0 <= level < float("inf"):
            raise NonFiniteError(f"invalid level {level}: the samples of the frame are not finite")
        self._loudest = max(self._loudest, level)
        silent = level < max(self.rule.silence_floor, self.rule.silence_ratio * self._loudest)
        self._silent = self._silent + 1 if silent else 0
        if self._silent >= self.rule.silent_frames:
            self._reset()
            return FinishReason.SILENCE
        return None

    def _reset(self) -> None:
        self._recent.clear()
        self._matches = [0] * self.rule.longest_loop_frames
        self._stuck = self._silent = 0
