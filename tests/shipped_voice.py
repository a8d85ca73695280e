"""Recorded codes of the embedded voice for fixed texts and seeds. `python -m tests.shipped_voice` records them again.

The record contains the codes and marks near ties: sampled codes that another CPU's kernels may round differently. All
other codes must be equal everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from legato.backends.select import load_backend
from legato.config.engine import EngineConfig
from legato.engine.request import SpeechRequest, resolve_request
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.sequence import text_token_after
from legato.models.code_predictor.predict import frame_logits_uncached
from legato.models.noise import uniforms
from legato.models.sampling import SamplerSettings, SamplingRows, process_first_code_logits, sample
from legato.models.talker.embed import embed_prompt, next_input
from legato.types import Frame
from legato.verify.harness import Outcome, SteppedEngine
from legato.verify.target import Depth, Target

FOLDER = Path(str(files("legato").joinpath("assets/voice")))
RECORD = Path(__file__).with_name("fixtures") / "voice" / "codes.json"
CASES = (
    ("Good morning, and welcome.", "heart", 1),
    ("It was 98.6°F at 9 a.m.", "michael", 2),
)
MARGIN = 1e-3
"""A code is a near tie if another code is sampled after the random number changes by this much, or after the sampled
code's logit drops by this much. Float32 kernels differ by about 1e-5 in a logit."""

Place = tuple[int, int]
"""Frame and codebook."""


@dataclass(frozen=True)
class Recorded:
    """The record of one case."""

    codes: tuple[Frame, ...]
    near_ties: frozenset[Place]


@dataclass(frozen=True)
class Generated:
    """The engine's result for one case, and the sequence that produced it."""

    outcome: Outcome
    sequence: TalkerSequence


def load_target() -> Target:
    """The embedded voice in float32, as the engine loads it."""
    return Target.of(load_backend(FOLDER, keep_reference=True), Depth(), seed=0)


def recorded(case: int) -> Recorded:
    """The record of a case; asserts that it belongs to the same text, voice and seed."""
    line = json.loads(RECORD.read_text(encoding="utf-8"))[case]
    assert (line["text"], line["voice"], line["seed"]) == CASES[case]
    return Recorded(tuple(map(tuple, line["codes"])), frozenset(map(tuple, line["close"])))


def generate(voice: Target, text: str, speaker: str, seed: int) -> Generated:
    """Generate one text with the engine, in deterministic mode."""
    asked = SpeechRequest(voice=speaker, seed=seed)
    request = resolve_request(asked, voice.model.config, voice.front_end, voice.voices, whole_text=True).request
    rig = SteppedEngine(voice, EngineConfig(max_num_seqs=1, kv_slots=1, max_seq_len=256, deterministic=True))
    client = rig.submit(request, text)
    rig.run()
    (sequence,) = client.stream.sequences
    return Generated(rig.outcome(client), sequence)


def first_difference(codes: Sequence[Frame], others: Sequence[Frame]) -> Place | None:
    """The first place where the two differ; later codes depend on it."""
    assert len(codes) == len(others)
    pairs = enumerate(zip(codes, others, strict=True))
    places = ((index, book) for index, (own, its) in pairs for book in range(len(own)) if own[book] != its[book])
    return next(places, None)


class TeacherForcing:
    """Samples each code of a case given the recorded codes before it, so that one mismatch does not cause others."""

    def __init__(self, voice: Target, sequence: TalkerSequence, codes: Sequence[Frame]) -> None:
        self._model, self._sequence = voice.model, sequence
        self._backend = voice.backend
        self._codes = torch.tensor(codes)
        with torch.inference_mode():
            hidden = self._states()
            predictor, embedding = self._backend.code_predictor, self._backend.talker.model.codec_embedding
            self._first = self._first_logits(hidden)
            self._rest = frame_logits_uncached(predictor, embedding, hidden, self._codes).flatten(0, 1)

    def sample_codes(self, shift: float = 0.0, lower: float = 0.0) -> Tensor:
        """Codes [T, Q] sampled with all random numbers shifted and the logits of the recorded codes lowered."""
        T, Q = self._codes.shape
        sequence = self._sequence
        noise = torch.tensor([uniforms(sequence.seed, sequence.number, t, Q) for t in range(T)], dtype=torch.float64)
        noise = (noise + shift).clamp(0.0, 1.0 - 2.0**-53)
        settings = SamplingRows.of([sequence.sampling] * (T * Q))
        first = SamplerSettings(*(each[:T] for each in astuple(settings.first)))
        rest = SamplerSettings(*(each[T:] for each in astuple(settings.residual)))
        own = sample(_lowered(self._first, self._codes[:, 0], lower), first, noise[:, 0])
        residual = sample(_lowered(self._rest, self._codes[:, 1:].flatten(), lower), rest, noise[:, 1:].flatten())
        return torch.cat((own.codes[:, None], residual.codes.view(T, Q - 1)), dim=1)

    def mismatches(self, *, shift: float = 0.0, lower: float = 0.0) -> set[Place]:
        """Places where the sampled codes are not the recorded ones."""
        return {(t, book) for t, book in (self.sample_codes(shift, lower) != self._codes).nonzero().tolist()}

    def near_ties(self) -> set[Place]:
        """Places that another CPU may round differently."""
        return self.mismatches(shift=MARGIN) | self.mismatches(shift=-MARGIN) | self.mismatches(lower=MARGIN)

    def _states(self) -> Tensor:
        """The talker's hidden state before each frame [T, D], computed in one call."""
        model, sequence = self._backend, self._sequence
        plan = sequence.prompt
        assert plan is not None
        T = len(self._codes)
        tokens = [text_token_after(plan, sequence.tokenizer, number) for number in range(T - 1)]
        assert None not in tokens
        fed = next_input(model.talker, model.code_predictor, self._codes[:-1], torch.tensor(tokens))
        prompt = embed_prompt(model.talker, model.code_predictor, plan)
        return model.talker.forward_uncached(torch.cat((prompt, fed))[None])[0, -T:]

    def _first_logits(self, hidden: Tensor) -> Tensor:
        config, T = self._model.config, len(self._codes)
        drawn = torch.nn.functional.one_hot(self._codes[:, 0], config.talker.vocab_size)
        return process_first_code_logits(
            self._backend.talker.first_code_logits(hidden),
            (drawn.cumsum(0) - drawn).bool(),
            frames=torch.arange(T),
            allow_eos=torch.full((T,), not self._sequence.ends_with_text),
            repetition_penalty=SamplingRows.of([self._sequence.sampling] * T).repetition_penalty,
            codebook_size=config.code_predictor.codebook_size,
            eos=config.talker.ids.eos,
        )


def _lowered(logits: Tensor, codes: Tensor, by: float) -> Tensor:
    return logits.scatter_add(1, codes[:, None], torch.full_like(logits[:, :1], -by))


def record() -> None:
    """Write the record file."""
    voice, lines = load_target(), list[str]()
    for text, speaker, seed in CASES:
        generated = generate(voice, text, speaker, seed)
        codes = generated.outcome.codes
        close = TeacherForcing(voice, generated.sequence, codes).near_ties()
        line = {"text": text, "voice": speaker, "seed": seed, "codes": codes, "close": sorted(close)}
        lines.append(json.dumps(line, ensure_ascii=False))
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record()
