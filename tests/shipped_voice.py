"""What the voice in this repository says for fixed texts and seeds. `python -m tests.shipped_voice` records it anew.

The record holds the codes, and which draws were close: a kernel of another processor may round a close one to the other
side, and none else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from legato.config.engine import EngineConfig
from legato.engine.resolve import SpeechRequest, resolve
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.sequence import text_to_feed
from legato.flow import Frame
from legato.models.code_predictor.predict import predict_frame_whole_logits
from legato.models.load import load_model
from legato.models.noise import uniforms
from legato.models.sampling import DrawSettings, SamplingRows, draw, process_first_code_logits
from legato.models.talker.embed import embed_prompt, next_input
from legato.verify.rig import Outcome, Rig
from legato.verify.subject import Depth, Subject

FOLDER = Path(str(files("legato").joinpath("assets/voice")))
RECORD = Path(__file__).with_name("fixtures") / "voice" / "codes.json"
CASES = (
    ("Good morning, and welcome.", "heart", 1),
    ("It was 98.6°F at 9 a.m.", "michael", 2),
)
CLOSE = 1e-3
"""A draw is close if another code is drawn once the random number is this much larger or smaller, or the drawn code's
logit this much lower. In float32 kernels differ by some 1e-5 in a logit."""

Place = tuple[int, int]
"""Frame and codebook."""


@dataclass(frozen=True)
class Recorded:
    """A line of the record."""

    codes: tuple[Frame, ...]
    close: frozenset[Place]


@dataclass(frozen=True)
class Spoken:
    """What the engine made of a case, and the sequence that it spoke."""

    outcome: Outcome
    sequence: TalkerSequence


def subject() -> Subject:
    """The shipped voice in float32, as the engine loads it."""
    return Subject.of(load_model(FOLDER), Depth(), seed=0)


def recorded(case: int) -> Recorded:
    """The line of a case; refuses one of another text, voice or seed."""
    line = json.loads(RECORD.read_text(encoding="utf-8"))[case]
    assert (line["text"], line["voice"], line["seed"]) == CASES[case]
    return Recorded(tuple(map(tuple, line["codes"])), frozenset(map(tuple, line["close"])))


def spoken(voice: Subject, text: str, speaker: str, seed: int) -> Spoken:
    """One text through the engine's own loop, in deterministic mode."""
    asked = SpeechRequest(voice=speaker, seed=seed)
    request = resolve(asked, voice.model.config, voice.front_end, voice.voices, whole_text=True).request
    rig = Rig(voice, EngineConfig(streams=1, kv_slots=1, positions=256, deterministic=True))
    client = rig.submit(request, text)
    rig.run()
    (sequence,) = client.stream.sequences
    return Spoken(rig.outcome(client), sequence)


def first_difference(codes: Sequence[Frame], others: Sequence[Frame]) -> list[Place]:
    """Where the two begin to differ, or nothing: all that follows depends on it."""
    assert len(codes) == len(others)
    pairs = enumerate(zip(codes, others, strict=True))
    places = ((at, book) for at, (own, its) in pairs for book in range(len(own)) if own[book] != its[book])
    return list(itertools.islice(places, 1))


class Prompter:
    """Draws every code of a case after the recorded ones before it, so that one that differs changes no other."""

    def __init__(self, voice: Subject, sequence: TalkerSequence, codes: Sequence[Frame]) -> None:
        self._model, self._sequence = voice.model, sequence
        self._codes = torch.tensor(codes)
        with torch.inference_mode():
            hidden = self._states()
            predictor, embedding = self._model.code_predictor, self._model.talker.model.codec_embedding
            self._first = self._first_logits(hidden)
            self._rest = predict_frame_whole_logits(predictor, embedding, hidden, self._codes).flatten(0, 1)

    def draws(self, shift: float = 0.0, lower: float = 0.0) -> Tensor:
        """Codes [T, Q] with all random numbers shifted, and the logits of the recorded codes lowered."""
        T, Q = self._codes.shape
        sequence = self._sequence
        noise = torch.tensor([uniforms(sequence.seed, sequence.number, t, Q) for t in range(T)], dtype=torch.float64)
        noise = (noise + shift).clamp(0.0, 1.0 - 2.0**-53)
        settings = SamplingRows.of([sequence.sampling] * (T * Q))
        first = DrawSettings(*(each[:T] for each in astuple(settings.first)))
        rest = DrawSettings(*(each[T:] for each in astuple(settings.residual)))
        own = draw(_lowered(self._first, self._codes[:, 0], lower), first, noise[:, 0])
        residual = draw(_lowered(self._rest, self._codes[:, 1:].flatten(), lower), rest, noise[:, 1:].flatten())
        return torch.cat((own.codes[:, None], residual.codes.view(T, Q - 1)), dim=1)

    def differing(self, *, shift: float = 0.0, lower: float = 0.0) -> set[Place]:
        """Where `draws` are not the recorded codes."""
        return {(t, book) for t, book in (self.draws(shift, lower) != self._codes).nonzero().tolist()}

    def close(self) -> set[Place]:
        """The draws that another processor may round to the other side."""
        return self.differing(shift=CLOSE) | self.differing(shift=-CLOSE) | self.differing(lower=CLOSE)

    def _states(self) -> Tensor:
        """The talker's hidden state before each frame [T, D], in one call."""
        model, sequence = self._model, self._sequence
        (plan,) = sequence.prompts
        T = len(self._codes)
        tokens = [text_to_feed(plan, sequence.track, number)[0] for number in range(T - 1)]
        fed = next_input(model.talker, model.code_predictor, self._codes[:-1], torch.tensor(tokens))
        prompt = embed_prompt(model.talker, model.code_predictor, plan)
        return model.talker.forward_whole(torch.cat((prompt, fed))[None])[0, -T:]

    def _first_logits(self, hidden: Tensor) -> Tensor:
        config, T = self._model.config, len(self._codes)
        drawn = torch.nn.functional.one_hot(self._codes[:, 0], config.talker.vocab_size)
        return process_first_code_logits(
            self._model.talker.first_code_logits(hidden),
            (drawn.cumsum(0) - drawn).bool(),
            frames=torch.arange(T),
            allow_eos=torch.full((T,), not self._sequence.ends_with_track),
            repetition_penalty=SamplingRows.of([self._sequence.sampling] * T).repetition_penalty,
            codebook_size=config.code_predictor.codebook_size,
            eos=config.talker.ids.eos,
        )


def _lowered(logits: Tensor, codes: Tensor, by: float) -> Tensor:
    return logits.scatter_add(1, codes[:, None], torch.full_like(logits[:, :1], -by))


def record() -> None:
    """Write the record."""
    voice, lines = subject(), list[str]()
    for text, speaker, seed in CASES:
        said = spoken(voice, text, speaker, seed)
        codes = said.outcome.codes
        close = Prompter(voice, said.sequence, codes).close()
        line = {"text": text, "voice": speaker, "seed": seed, "codes": codes, "close": sorted(close)}
        lines.append(json.dumps(line, ensure_ascii=False))
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record()
