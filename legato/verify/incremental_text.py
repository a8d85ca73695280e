"""Text that arrives in pieces against the same text given at once: tokens, codes and samples must be equal.

Both use the streaming layout; the whole-text layout waits for all text. The faulty front end of the controls is at the
end of this module.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from legato.engine.frontend import FrontEnd
from legato.text.segmenter import SegmentRule
from legato.types import IncrementalTokenizer, TextLayout, TextToken, WordSpan
from legato.verify.batching import compare_outcomes, same_shapes_tolerance
from legato.verify.compare import TOKENS, Comparison, compare, equal_or_not, worst
from legato.verify.harness import DEFAULT_PARTS, EngineParts, Outcome, SteppedEngine
from legato.verify.results import CheckLine, ExecutionInfo, Kind
from legato.verify.target import Target

GROUP = "text in pieces"
TEXTS = (
    "Dr. Smith paid $3.50 on May 5th, didn't he?",
    "Wait... what? It's 10:30, and the 2nd train has left!",
    "Ein naïve café, 3,000 people & one very-long-winded host.",
)
SPOKEN_TEXT = "Wait for it, please."
STEPS_PER_PIECE = {"letter by letter": 1, "letter by letter, slower than speech": 4}


def check_incremental_text(target: Target) -> Iterator[CheckLine]:
    """Tokens, then whole streams; the controls tokenize pieces separately, do not wait for text, or lose a letter."""
    yield from _check_tokens(target)
    oracle = run_stream(target, [SPOKEN_TEXT], 0)
    tolerance = same_shapes_tolerance(target, oracle)

    def line(claim: str, setting: str, got: Outcome, kind: Kind = Kind.CLAIM) -> CheckLine:
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=setting,
            execution=target.engine_execution("deterministic mode, streaming layout", batch=1),
            comparison=compare_outcomes(target, [got], [oracle], tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    for name, steps in STEPS_PER_PIECE.items():
        yield line("codes and samples of pieces = at once", name, run_stream(target, list(SPOKEN_TEXT), steps))
    early_end = EngineParts(front_end=EarlyEndFrontEnd(target.front_end))
    not_waiting = run_stream(target, list(SPOKEN_TEXT), 4, early_end)
    yield line("engine does not wait for text", "slower than speech", not_waiting, Kind.CONTROL)
    incomplete = [letter for index, letter in enumerate(SPOKEN_TEXT) if index != 1]
    yield line("one letter lost", "letter by letter", run_stream(target, incomplete, 1), Kind.CONTROL)


def _check_tokens(target: Target) -> Iterator[CheckLine]:
    speaker = target.request(500).spec.speaker
    splits = target.depth.text_splits

    def line(claim: str, setting: str, parts: Sequence[Comparison], kind: Kind) -> CheckLine:
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=setting,
            execution=ExecutionInfo("cpu", "text", 1, "text front end"),
            comparison=worst(parts),
            tolerance=TOKENS,
            kind=kind,
        )

    random_pieces = [
        compare_tokens(target, speaker, text, split_at_random(text, target.seed + number))
        for text in TEXTS
        for number in range(splits)
    ]
    setting = f"{len(TEXTS)} texts, each split at random in {splits} ways"
    yield line("tokens of pieces = tokens of the text", setting, random_pieces, Kind.CLAIM)
    separate = [compare_tokens(target, speaker, text, list(text), separately=True) for text in TEXTS]
    yield line("pieces tokenized separately", "letter by letter", separate, Kind.CONTROL)


def split_at_random(text: str, seed: int) -> list[str]:
    """Split the text into pieces of 1 to 6 characters."""
    generator = random.Random(seed)
    pieces: list[str] = []
    while text:
        size = generator.randint(1, 6)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def compare_tokens(
    target: Target, speaker: str, text: str, pieces: Sequence[str], *, separately: bool = False
) -> Comparison:
    """Tokens of the pieces against those of the whole text. `separately`: one tokenizer per alphanumeric piece."""
    whole = tokens_of(target.front_end.new_tokenizer(speaker), [text])
    if separately:
        got = [
            token
            for piece in pieces
            if piece.isalnum()
            for token in tokens_of(target.front_end.new_tokenizer(speaker), [piece])
        ]
    else:
        got = tokens_of(target.front_end.new_tokenizer(speaker), pieces)
    width = len(whole[0])
    a, b = (torch.tensor(each, dtype=torch.int64).reshape(len(each), width) for each in (got, whole))
    return equal_or_not(compare(a, b, ("token", "id"), stage="text tokens", limit=TOKENS.limit))


def tokens_of(tokenizer: IncrementalTokenizer, pieces: Sequence[str]) -> list[TextToken]:
    """All tokens of a text that arrives in `pieces`."""
    for piece in pieces:
        tokenizer.append(piece)
    tokenizer.end()
    return list(tokenizer.tokens)


def run_stream(target: Target, pieces: Sequence[str], steps: int, parts: EngineParts = DEFAULT_PARTS) -> Outcome:
    """Run a stream whose text arrives in `pieces`, `steps` engine steps apart."""
    engine = SteppedEngine(target, target.engine_config(max_num_seqs=1, deterministic=True), parts)
    client = engine.submit(target.request(501, layout=TextLayout.STREAMING), ended=False)
    for piece in pieces:
        engine.append(client, piece)
        for _ in range(steps):
            engine.step()
    engine.end(client)
    engine.run()
    return engine.outcome(client)


class EarlyEndTokenizer:
    """A tokenizer that reports the end of its text as soon as it has a token."""

    def __init__(self, tokenizer: IncrementalTokenizer) -> None:
        self._tokenizer = tokenizer

    def append(self, text: str) -> None:
        """Pass on to the tokenizer."""
        self._tokenizer.append(text)

    def end(self) -> None:
        """Pass on to the tokenizer."""
        self._tokenizer.end()

    @property
    def tokens(self) -> Sequence[TextToken]:
        return self._tokenizer.tokens

    @property
    def ended(self) -> bool:
        return len(self._tokenizer.tokens) > 0

    @property
    def words(self) -> Sequence[WordSpan]:
        return self._tokenizer.words


@dataclass(frozen=True, slots=True)
class EarlyEndFrontEnd:
    """A front end with such tracks."""

    inner: FrontEnd

    @property
    def segment_rule(self) -> SegmentRule:
        return self.inner.segment_rule

    @property
    def ends_with_text(self) -> bool:
        return self.inner.ends_with_text

    @property
    def supports_speed(self) -> bool:
        return self.inner.supports_speed

    def new_tokenizer(self, speaker: str, speed: float = 1.0) -> IncrementalTokenizer:
        return EarlyEndTokenizer(self.inner.new_tokenizer(speaker, speed))

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:
        return self.inner.encode_instruction(text)

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:
        return self.inner.encode_transcript(transcript)
