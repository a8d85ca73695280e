"""Legato's side: a loaded checkpoint, and its results for a row of a case.

Uses the functions of the engine (prompt plan, embedding, talker, code predictor, text input per frame) and has no
generation loop of its own. The codes of a row are given (teacher forcing), so one difference does not hide the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.backends.base import Backend
from legato.backends.select import load_backend
from legato.config.model import ModelConfig
from legato.engine.sequence import text_token_after
from legato.models.code_predictor.predict import frame_logits_uncached
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.mel import log_mel
from legato.models.speaker import speaker_vector
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import embed_prompt, next_input, text_vectors
from legato.models.talker.state import KVRows, TalkerCache
from legato.text.prompt import InstructSupport, instruct_support, plan_prompt
from legato.text.tokenizer import BpeTokenizer
from legato.types import NeedsText, PromptPlan, PromptSpec, TextLayout, TextToken, WordSpan
from legato.weights.loading import LoadedModel
from parity import cases, variants


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """A `IncrementalTokenizer` whose text is complete."""

    tokens: tuple[TextToken, ...]
    ended: bool = True
    words: tuple[WordSpan, ...] = ()

    def append(self, text: str) -> None:
        raise NotImplementedError(f"the text is complete; cannot append {text!r}")

    def end(self) -> None:
        raise NotImplementedError("the text is complete")


@dataclass(slots=True)
class Computed:
    """Legato's results for one row, in the format of the official record."""

    prompt: Tensor
    feed: Tensor
    hidden: Tensor
    logits: Tensor
    predictor_logits: Tensor


@dataclass(slots=True)
class ParityModel:
    """A loaded checkpoint. `references` caches speaker vector and codes by length of the reference."""

    backend: Backend
    tokenizer: BpeTokenizer
    references: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> ParityModel:
        """Load the checkpoint in float32 on the CPU, as the engine does."""
        return ParityModel(load_backend(path, keep_reference=True), BpeTokenizer.load(path))

    @property
    def loaded(self) -> LoadedModel:
        """The reference modules and the configuration."""
        return self.backend.model

    @property
    def config(self) -> ModelConfig:
        return self.loaded.config

    @property
    def talker(self) -> Talker:
        return self.backend.talker

    @property
    def predictor(self) -> CodePredictor:
        return self.backend.code_predictor

    @property
    def decoder(self) -> CodecDecoder:
        return self.backend.decoder

    def stopping(self, target: Path, winner: int) -> ParityModel:
        """A copy of this checkpoint in `target` that ends where it would choose the code `winner`."""
        return ParityModel.load(
            variants.stopping_copy(self.loaded.folder, target, eos=self.config.talker.ids.eos, winner=winner)
        )

    def encode(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Reference codes int64 [T, Q] of samples [N]."""
        if self.loaded.encoder is None:
            raise AssertionError("this checkpoint's codec has no encoder")
        return self.loaded.encoder.encode(torch.from_numpy(samples)[None])[0][0]

    def mel(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Mel frames [T, 128]."""
        return log_mel(torch.from_numpy(samples)[None])[0]

    def speaker_vector(self, samples: npt.NDArray[np.float32]) -> Tensor:
        """Speaker vector [D]."""
        if self.loaded.speaker_encoder is None:
            raise AssertionError("this checkpoint has no speaker encoder")
        return speaker_vector(self.loaded.speaker_encoder, torch.from_numpy(samples))

    def row_tokens(self, row: cases.Row) -> dict[str, tuple[TextToken, ...]]:
        """The tokens of the row's texts."""
        return {
            "target": self.tokenizer.encode_text(row.text),
            "instruct": self.tokenizer.encode_instruction(row.instruct) if row.instruct else (),
            "reference": self.tokenizer.encode_transcript(row.reference_text),
        }

    def row_spec(self, row: cases.Row, *, whole: bool) -> PromptSpec:
        """The prompt specification of the row."""
        tokens = self.row_tokens(row)
        _, codes = self.reference(row)
        return PromptSpec(
            language=row.language,
            speaker=row.speaker,
            layout=TextLayout.WHOLE if whole else TextLayout.STREAMING,
            instruct=tokens["instruct"] if instruct_support(self.config) is InstructSupport.USED else (),
            speaker_vector=row.reference_samples > 0,
            reference_text=tokens["reference"],
            reference_frames=0 if codes is None else len(codes),
        )

    def row_plan(self, row: cases.Row, *, whole: bool) -> tuple[PromptPlan, GivenTokens]:
        """The prompt plan of the row and its complete text."""
        tokenizer = GivenTokens(self.row_tokens(row)["target"])
        plan = plan_prompt(self.config.talker, self.row_spec(row, whole=whole), tokenizer)
        if isinstance(plan, NeedsText):
            raise AssertionError(f"the plan needs {plan.tokens} tokens, but the text is complete")
        return plan, tokenizer

    def compute(self, row: cases.Row, codes: Tensor, *, whole: bool, feed_steps: int) -> Computed:
        """Results for given `codes` int64 [T, Q]; text input for the first `feed_steps` frames."""
        plan, tokenizer = self.row_plan(row, whole=whole)
        vector, reference_codes = self.reference(row)
        prompt = embed_prompt(
            self.talker,
            self.predictor,
            plan,
            speaker_vector=vector,
            reference_codes=reference_codes,
        )
        frames = len(codes)
        tokens = [text_token_after(plan, tokenizer, n) for n in range(max(frames, feed_steps))]
        fed = [token for token in tokens if token is not None]
        inputs = next_input(self.talker, self.predictor, codes, torch.tensor(fed[:frames], dtype=torch.int64))
        hidden = self._states(prompt, inputs)
        return Computed(
            prompt=prompt,
            feed=text_vectors(self.talker, fed[:feed_steps]),
            hidden=hidden,
            logits=self.talker.first_code_logits(hidden),
            predictor_logits=frame_logits_uncached(
                self.predictor, self.talker.model.codec_embedding, hidden[:frames], codes
            ),
        )

    def _states(self, prompt: Tensor, inputs: Tensor) -> Tensor:
        """Hidden states after the prompt and after each input [T, D], step by step with a KV cache: [T + 1, D]."""
        positions = len(prompt) + len(inputs)
        cache = TalkerCache.allocate(self.config.talker.stack, 1, positions, torch.float32)
        rows = KVRows.of([0])
        states = [self.talker(cache, rows, prompt[None], torch.tensor([0]))]
        for n, step in enumerate(inputs):
            states.append(self.talker(cache, rows, step[None, None], torch.tensor([len(prompt) + n])))
        return torch.cat(states)

    def reference(self, row: cases.Row) -> tuple[Tensor | None, Tensor | None]:
        """Speaker vector [D] and codes [T, Q] of the reference; codes are None without a transcript."""
        if not row.reference_samples:
            return None, None
        if row.reference_samples not in self.references:
            samples = cases.reference_audio(row.reference_samples)
            self.references[row.reference_samples] = (self.speaker_vector(samples), self.encode(samples))
        vector, codes = self.references[row.reference_samples]
        return vector, codes if row.reference_text else None
