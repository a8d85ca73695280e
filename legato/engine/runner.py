"""A plan's talker work, carried out: prompts prefilled, rows stepped, first codes and frames drawn.

Owns, for each seated sequence, the embedded prompt until it is computed, the codes drawn so far (for the repetition
penalty) and the hidden state between the talker and the draw; all go when the sequence is unseated. Frame scratch is
not here: it lives inside `predict_frame`. Decides nothing and knows no stream, no text beyond the next token, no
client.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

import torch
from torch import Tensor

from legato.config.model import ModelConfig
from legato.engine.batches import RowsPerCall, batches
from legato.engine.kv_pool import KVPool
from legato.engine.prefixes import PrefixKey, PrefixStore, shared_positions
from legato.engine.sequence import Seat, Sequence, text_to_feed
from legato.engine.steps import FirstCodeInputs, FrameInputs, StepCompute, Steps
from legato.errors import GenerationError, NonFiniteError, StateError
from legato.flow import FinishReason, Frame, SequenceId
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.noise import uniforms
from legato.models.sampling import SamplingRows
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import embed_prompt
from legato.models.voice import Voice


@dataclass(frozen=True, slots=True)
class _Work:
    """The device values of one seated sequence. `hidden` holds the fresh state [D] or nothing.

    `start`: what its prompt begins with, as others may, too.
    """

    prompt: Tensor
    seen: Tensor
    start: PrefixKey
    hidden: list[Tensor] = field(default_factory=list)
    first_code: list[int] = field(default_factory=list)


class Runner:
    """The talker and the code predictor over the engine's talker slots."""

    def __init__(
        self,
        config: ModelConfig,
        talker: Talker,
        predictor: CodePredictor,
        pool: KVPool,
        *,
        rows_per_call: RowsPerCall,
        prefixes: PrefixStore,
    ) -> None:
        self.config = config
        self._prefixes = prefixes
        self._rows_per_call = rows_per_call
        self.pool = pool
        self.compute: StepCompute = Steps(config, talker, predictor, pool.cache)
        self.frames_drawn = 0
        self._talker, self._predictor = talker, predictor
        self._device = talker.codec_head.weight.device
        self._work: dict[SequenceId, _Work] = {}

    @property
    def positions(self) -> int:
        """Positions of one slot."""
        return self.pool.cache.positions

    @property
    def seated(self) -> int:
        """Sequences that hold values here."""
        return len(self._work)

    def seat(self, sequence: Sequence, voices: List[Voice]) -> None:
        """Embed the prompt of a sequence that was just given its slot. `voices` holds the clone's voice or nothing.

        What the prompt begins with is not computed again if it was kept.
        """
        speaker = voices[0].speaker_vector if voices else None
        codes = voices[0].codes if voices else None
        prompt = embed_prompt(
            self._talker, self._predictor, sequence.seat.plan, speaker_vector=speaker, reference_codes=codes
        )
        seen = torch.zeros(self.config.talker.vocab_size, dtype=torch.bool, device=self._device)
        plan = sequence.seat.plan
        start = (voices[0].key if voices else "", plan.rows[: shared_positions(plan)])
        self._work[sequence.id] = _Work(prompt, seen, start)
        for copy in self._prefixes.find(start):
            sequence.seat.positions = self.pool.copy_in(sequence.seat.lease, copy)

    def unseat(self, sequence: Sequence) -> None:
        """Forget the sequence and give its slot back."""
        for seat in sequence.seats:
            self.pool.release(seat.lease)
        sequence.seats.clear()
        self._work.pop(sequence.id, None)

    def prefill(self, slices: List[tuple[Sequence, int, int]]) -> list[Sequence]:
        """Compute prompt positions `start .. start + length` of each; returns those whose prompt is complete."""
        return [each for batch in batches(slices, self._rows_per_call.talker) for each in self._prefill(batch)]

    def step(self, sequences: List[Sequence]) -> None:
        """Feed each sequence's newest frame with its next text token; leaves a fresh hidden state for the draw."""
        for batch in batches(sequences, self._rows_per_call.talker):
            self._step(batch)

    def draw_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        """Codebook 0 of each sequence's next frame from its fresh hidden state; or the end of speech; or a failure."""
        rows = self._rows_per_call.first_code
        return [each for batch in batches(sequences, rows) for each in self._draw_first_codes(batch)]

    def draw_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        """All codes of the frames whose first codes were just drawn."""
        rows = self._rows_per_call.predictor
        return [each for batch in batches(sequences, rows) for each in self._draw_frames(batch)]

    def _prefill(self, slices: List[tuple[Sequence, int, int]]) -> list[Sequence]:
        longest = max(length for _, _, length in slices)
        x = torch.stack([self._prompt_slice(sequence, start, length, longest) for sequence, start, length in slices])
        starts = [start for _, start, _ in slices]
        lengths = [length for _, _, length in slices]
        hidden = self._advance([sequence.seat for sequence, _, _ in slices], x, starts, lengths)
        complete: list[Sequence] = []
        for (sequence, start, length), state in zip(slices, hidden, strict=True):
            sequence.seat.positions = start + length
            self._keep_start(sequence)
            if sequence.seat.positions == len(sequence.seat.plan.rows):
                self._work[sequence.id].hidden[:] = [state]
                complete.append(sequence)
        if complete and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # so that "prompt computed" is true when it is said
        return complete

    def _keep_start(self, sequence: Sequence) -> None:
        """Keep the start of a prompt if it is what has just been completed."""
        key, lease = self._work[sequence.id].start, sequence.seat.lease
        if sequence.seat.positions == len(key[1]) and not self._prefixes.find(key):
            self._prefixes.keep(key, self.pool.copy_out(lease, sequence.seat.positions))

    def _step(self, sequences: List[Sequence]) -> None:
        seats, home = [sequence.seat for sequence in sequences], self.compute.home
        positions = [seat.positions for seat in seats]
        span = self._span([position + 1 for position in positions])
        tokens = [text_to_feed(each.seat.plan, each.track, each.frames - 1)[0] for each in sequences]
        hidden = self.compute.talker(
            torch.tensor([seat.unfed[0] for seat in seats], device=home),
            torch.tensor(tokens, device=home),
            self.pool.rows([seat.lease for seat in seats]),
            torch.tensor(positions, device=home),
            span=span,
        )
        for sequence, state in zip(sequences, hidden, strict=True):
            sequence.seat.positions += 1
            sequence.seat.unfed.clear()
            self._work[sequence.id].hidden[:] = [state]

    def _draw_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        home, eos = self.compute.home, self.config.talker.ids.eos
        rows = SamplingRows.of([sequence.sampling for sequence in sequences], home)
        drawn = self.compute.first_codes(
            FirstCodeInputs(
                hidden=self._hidden(sequences),
                seen=torch.stack([self._work[sequence.id].seen for sequence in sequences]),
                frames=torch.tensor([sequence.frames for sequence in sequences], device=home),
                allow_eos=torch.tensor([not sequence.ends_with_track for sequence in sequences], device=home),
                temperature=rows.first.temperature,
                top_k=rows.first.top_k,
                top_p=rows.first.top_p,
                repetition_penalty=rows.repetition_penalty,
                uniform=self._noise(sequences)[:, 0],
            )
        )
        outcomes: list[int | FinishReason | GenerationError] = []
        for sequence, code, finite in zip(sequences, drawn.codes.tolist(), drawn.finite.tolist(), strict=True):
            if not finite:
                outcomes.append(_not_finite("the talker's logits", sequence))
            elif code == eos:
                outcomes.append(FinishReason.EOS)
            else:
                self._work[sequence.id].seen[code] = True
                self._work[sequence.id].first_code[:] = [code]
                outcomes.append(code)
        return outcomes

    def _draw_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        home = self.compute.home
        how = SamplingRows.of([sequence.sampling for sequence in sequences], home).residual
        drawn = self.compute.frames(
            FrameInputs(
                hidden=self._hidden(sequences),
                first_code=torch.tensor([self._work[each.id].first_code[0] for each in sequences], device=home),
                temperature=how.temperature,
                top_k=how.top_k,
                top_p=how.top_p,
                noise=self._noise(sequences),
            )
        )
        self.frames_drawn += len(sequences)
        for sequence in sequences:
            self._work[sequence.id].hidden.clear()
        return [
            tuple(frame) if finite else _not_finite("the code predictor's logits", sequence)
            for sequence, frame, finite in zip(sequences, drawn.codes.tolist(), drawn.finite.tolist(), strict=True)
        ]

    def _advance(self, seats: List[Seat], x: Tensor, starts: list[int], lengths: list[int]) -> Tensor:
        span = self._span([start + length for start, length in zip(starts, lengths, strict=True)])
        rows = self.pool.rows([seat.lease for seat in seats])
        ragged = min(lengths) < x.shape[1]
        hidden: Tensor = self._talker.forward(
            self.pool.cache,
            rows,
            x,
            torch.tensor(starts, device=self._device),
            torch.tensor(lengths, device=self._device) if ragged else None,
            span=span,
        )
        return hidden

    def _span(self, ends: list[int]) -> int:
        """The positions that a call looks at, `StateError` where they do not fit a slot."""
        if max(ends) > self.positions:
            raise StateError(f"position {max(ends)} is beyond the slot's {self.positions}")
        return max(ends)

    def _prompt_slice(self, sequence: Sequence, start: int, length: int, longest: int) -> Tensor:
        rows = self._work[sequence.id].prompt[start : start + length]
        return torch.nn.functional.pad(rows, (0, 0, 0, longest - length))

    def _hidden(self, sequences: List[Sequence]) -> Tensor:
        return torch.stack([self._work[sequence.id].hidden[0] for sequence in sequences])

    def _noise(self, sequences: List[Sequence]) -> Tensor:
        Q = self.config.talker.num_codebooks
        rows = [uniforms(each.seed, each.number, each.frames, Q) for each in sequences]
        return torch.tensor(rows, dtype=torch.float64, device=self.compute.home)


def _not_finite(what: str, sequence: Sequence) -> NonFiniteError:
    return NonFiniteError(
        f"{what} are not finite at frame {sequence.frames} of segment {sequence.number}; "
        "if the talker runs in bf16, try fp32; if it runs in fp32, the checkpoint is damaged"
    )
