"""Legato's side: a checkpoint loaded by Legato, and what it computes for a row of a case.

Holds the modules for as long as the caller does. Only puts together what the product itself uses (prompt plan,
embedding, talker, predictor, what is fed with a frame): there is no second generation loop here. A row is computed
along codes that are given, so one difference does not hide the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.config.model import ModelConfig
from legato.engine.sequence import text_to_feed
from legato.flow import NeedsText, PromptPlan, PromptSpec, TextLayout, TextToken, WordSpan
from legato.models.code_predictor.predict import predict_frame_whole_logits
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.load import LoadedModel, load_model
from legato.models.mel import log_mel
from legato.models.speaker import speaker_vector
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import embed_prompt, next_input, text_vectors
from legato.models.talker.state import KVRows, TalkerCache
from legato.text.bpe import BpeTokenizer
from legato.text.prompt import Instructions, instructions, plan_prompt
from parity import cases, variants


@dataclass(frozen=True, slots=True)
class GivenTrack:
    """A `TextTrack` whose text was given whole."""

    tokens: tuple[TextToken, ...]
    ended: bool = True
    words: tuple[WordSpan, ...] = ()

    def append(self, text: str) -> None:
        raise NotImplementedError(f"the text was given whole, and now {text!r}")

    def end(self) -> None:
        raise NotImplementedError("the text has ended")


@dataclass(slots=True)
class Computed:
    """What Legato computed for one row. Arrays as in the official record."""

    prompt: Tensor
    feed: Tensor
    hidden: Tensor
    logits: Tensor
    predictor_logits: Tensor


@dataclass(slots=True)
class Subject:
    """A loaded checkpoint. `references` keeps what was computed from each reference, by its samples."""

    model: LoadedModel
    tokenizer: BpeTokenizer
    references: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Subject:
        """The checkpoint in float32 on the CPU, as the product loads it."""
        return Subject(load_model(path), BpeTokenizer.load(path))

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def talker(self) -> Talker:
        return self.model.talker

    @property
    def predictor(self) -> CodePredictor:
        return self.model.code_predictor

    @property
    def decoder(self) -> CodecDecoder:
        return self.model.decoder

    def stopping(self, target: Path, winner: int) -> Subject:
        """This checkpoint, copied to `target` with its end of speech put in the place of the code `winner`."""
        return Subject.load(
            variants.stopping_copy(self.model.folder, target, eos=self.config.talker.ids.eos, winner=winner)
        )

    def encode(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Reference codes int64 [T, Q] of samples [N]."""
        if self.model.encoder is None:
            raise AssertionError("this checkpoint's codec has no encoder")
        return self.model.encoder.encode(torch.from_numpy(samples)[None])[0][0]

    def mel(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Mel frames [T, 128]."""
        return log_mel(torch.from_numpy(samples)[None])[0]

    def speaker_vector(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Speaker vector [D]."""
        if self.model.speaker_encoder is None:
            raise AssertionError("this checkpoint has no speaker encoder")
        return speaker_vector(self.model.speaker_encoder, torch.from_numpy(samples))

    def row_tokens(self, row: cases.Row) -> dict[str, tuple[TextToken, ...]]:
        """The tokens of the row's texts, as the product makes them."""
        return {
            "target": self.tokenizer.text(row.text),
            "instruct": self.tokenizer.instruct(row.instruct) if row.instruct else (),
            "reference": self.tokenizer.reference(row.reference_text),
        }

    def row_spec(self, row: cases.Row, *, whole: bool) -> PromptSpec:
        """What the row asks for."""
        tokens = self.row_tokens(row)
        codes = self.reference(row)[1]
        return PromptSpec(
            language=row.language,
            speaker=row.speaker,
            layout=TextLayout.WHOLE if whole else TextLayout.STREAMING,
            instruct=tokens["instruct"] if instructions(self.config) is Instructions.USED else (),
            speaker_vector=row.reference > 0,
            reference_text=tokens["reference"],
            reference_frames=len(codes) if row.reference_text else 0,
        )

    def row_plan(self, row: cases.Row, *, whole: bool) -> tuple[PromptPlan, GivenTrack]:
        """The plan of a row whose text was given whole."""
        track = GivenTrack(self.row_tokens(row)["target"])
        plan = plan_prompt(self.config.talker, self.row_spec(row, whole=whole), track)
        if isinstance(plan, NeedsText):
            raise AssertionError(f"a plan asks for {plan.tokens} tokens of a text that has ended")
        return plan, track

    def compute(self, row: cases.Row, codes: Tensor, *, whole: bool, feed_steps: int) -> Computed:
        """Prompt, what is fed in the first `feed_steps` frames, states and logits along `codes` int64 [T, Q]."""
        plan, track = self.row_plan(row, whole=whole)
        vector, reference_codes = self.reference(row)
        prompt = embed_prompt(
            self.talker,
            self.predictor,
            plan,
            speaker_vector=vector if len(vector) else None,
            reference_codes=reference_codes if len(reference_codes) else None,
        )
        frames = len(codes)
        fed = [token for n in range(max(frames, feed_steps)) for token in text_to_feed(plan, track, n)]
        inputs = next_input(self.talker, self.predictor, codes, torch.tensor(fed[:frames], dtype=torch.int64))
        hidden = self._states(prompt, inputs)
        return Computed(
            prompt=prompt,
            feed=text_vectors(self.talker, fed[:feed_steps]),
            hidden=hidden,
            logits=self.talker.first_code_logits(hidden),
            predictor_logits=predict_frame_whole_logits(
                self.predictor, self.talker.model.codec_embedding, hidden[:frames], codes
            ),
        )

    def _states(self, prompt: Tensor, inputs: Tensor) -> Tensor:
        """Talker states after the prompt and after each input [T, D], one step at a time on a cache: [T + 1, D]."""
        positions = len(prompt) + len(inputs)
        cache = TalkerCache.allocate(self.config.talker.stack, 1, positions, torch.float32)
        rows = KVRows.of([0])
        states = [self.talker(cache, rows, prompt[None], torch.tensor([0]))]
        for n, step in enumerate(inputs):
            states.append(self.talker(cache, rows, step[None, None], torch.tensor([len(prompt) + n])))
        return torch.cat(states)

    def reference(self, row: cases.Row) -> tuple[Tensor, Tensor]:
        """Speaker vector [D] and codes [T, Q] of the row's reference; empty where the row has none."""
        if not row.reference:
            return torch.empty(0), torch.empty(0, 0, dtype=torch.int64)
        if row.reference not in self.references:
            samples = cases.reference_audio(row.reference)
            self.references[row.reference] = (self.speaker_vector(samples), self.encode(samples))
        vector, codes = self.references[row.reference]
        return vector, codes if row.reference_text else codes[:0]
