"""Text that arrives in pieces against the same text given at once: the same tokens, codes and samples.

Both are spoken in the streaming layout, since a layout that waits for all text has nothing to stream. Owns one rig at a
time; the broken front ends of the controls live here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from legato.engine.frontend import FrontEnd
from legato.flow import TextLayout, TextToken, TextTrack, WordSpan
from legato.text.segment import SegmentRule
from legato.verify.company import alike, compare_outcomes
from legato.verify.compare import Comparison, compare, equal_or_not, worst
from legato.verify.lines import CheckLine, Kind, Where
from legato.verify.rig import SOUND, Outcome, Parts, Rig
from legato.verify.subject import Subject
from legato.verify.tolerance import TOKENS

GROUP = "text in pieces"
TEXTS = (
    "Dr. Smith paid $3.50 on May 5th, didn't he?",
    "Wait... what? It's 10:30, and the 2nd train has left!",
    "Ein naïve café, 3,000 people & one very-long-winded host.",
)
SPOKEN = "Wait for it, please."
PAUSES = {"letter by letter": 1, "letter by letter, slower than speech": 4}


def check_streamed(subject: Subject) -> Iterator[CheckLine]:
    """Tokens first, then whole streams, then a tokenizer and an engine that do not wait."""
    speaker = subject.request(500).spec.speaker
    host = Where("cpu", "text", 1, "text front end")
    cuts = subject.depth.text_cuts
    setting = f"{len(TEXTS)} texts, each cut at random in {cuts} ways"
    found = [
        tokens_agree(subject, speaker, text, cut_at_random(text, subject.seed + number))
        for text in TEXTS
        for number in range(cuts)
    ]
    yield CheckLine(GROUP, "tokens of pieces = tokens of the text", setting, host, worst(found), TOKENS)
    naive = [tokens_agree(subject, speaker, text, list(text), afresh=True) for text in TEXTS]
    yield CheckLine(GROUP, "each piece read by itself", "letter by letter", host, worst(naive), TOKENS, Kind.CONTROL)
    where = subject.at_engine("deterministic mode, streaming layout", batch=1)
    at_once = speak(subject, [SPOKEN], 0)
    tolerance = alike(subject, at_once)

    def line(claim: str, setting: str, got: Outcome, kind: Kind = Kind.CLAIM) -> CheckLine:
        same = compare_outcomes(subject, [got], [at_once], tolerance.limit)
        return CheckLine(GROUP, claim, setting, where, same, tolerance, kind)

    for name, turns in PAUSES.items():
        yield line("codes and samples of pieces = at once", name, speak(subject, list(SPOKEN), turns))
    hasty = Parts(front_ends=(HastyFrontEnd(subject.front_end),))
    slowly = speak(subject, list(SPOKEN), 4, hasty)
    yield line("an engine that does not wait for text", "slower than speech", slowly, Kind.CONTROL)
    lost = [letter for at, letter in enumerate(SPOKEN) if at != 1]
    yield line("a letter lost on the way", "letter by letter", speak(subject, lost, 1), Kind.CONTROL)


def cut_at_random(text: str, seed: int) -> list[str]:
    """The text in pieces of 1 to 6 characters."""
    drawn = random.Random(seed)
    pieces: list[str] = []
    while text:
        size = drawn.randint(1, 6)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def tokens_agree(
    subject: Subject, speaker: str, text: str, pieces: Sequence[str], *, afresh: bool = False
) -> Comparison:
    """Tokens of the pieces against those of the text; `afresh` reads every speakable piece with a track of its own."""
    whole = tokens_of(subject.front_end.track(speaker), [text])
    if afresh:
        got = [
            token
            for piece in pieces
            if piece.isalnum()
            for token in tokens_of(subject.front_end.track(speaker), [piece])
        ]
    else:
        got = tokens_of(subject.front_end.track(speaker), pieces)
    width = len(whole[0])
    mine, its = (torch.tensor(each, dtype=torch.int64).reshape(len(each), width) for each in (got, whole))
    return equal_or_not(compare(mine, its, ("token", "id"), stage="text tokens", limit=TOKENS.limit))


def tokens_of(track: TextTrack, pieces: Sequence[str]) -> list[TextToken]:
    """All tokens of a text that came in `pieces`."""
    for piece in pieces:
        track.append(piece)
    track.end()
    return list(track.tokens)


def speak(subject: Subject, pieces: Sequence[str], turns: int, parts: Parts = SOUND) -> Outcome:
    """A stream whose text comes in `pieces`, `turns` turns of the loop apart."""
    rig = Rig(subject, subject.engine_config(streams=1, deterministic=True), parts)
    client = rig.submit(subject.request(501, layout=TextLayout.STREAMING), ended=False)
    for piece in pieces:
        rig.append(client, piece)
        for _ in range(turns):
            rig.turn()
    rig.end(client)
    rig.run()
    return rig.outcome(client)


class HastyTrack:
    """A track that says its text has ended as soon as it has a token."""

    def __init__(self, track: TextTrack) -> None:
        self._track = track

    def append(self, text: str) -> None:
        """As the track."""
        self._track.append(text)

    def end(self) -> None:
        """As the track."""
        self._track.end()

    @property
    def tokens(self) -> Sequence[TextToken]:
        return self._track.tokens

    @property
    def ended(self) -> bool:
        return len(self._track.tokens) > 0

    @property
    def words(self) -> Sequence[WordSpan]:
        return self._track.words


@dataclass(frozen=True, slots=True)
class HastyFrontEnd:
    """A front end with hasty tracks."""

    sound: FrontEnd

    @property
    def segments(self) -> SegmentRule:
        return self.sound.segments

    @property
    def ends_with_track(self) -> bool:
        return self.sound.ends_with_track

    @property
    def changes_speed(self) -> bool:
        return self.sound.changes_speed

    def track(self, speaker: str, speed: float = 1.0) -> TextTrack:
        return HastyTrack(self.sound.track(speaker, speed))

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        return self.sound.instruct(text)

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        return self.sound.reference(transcript)
