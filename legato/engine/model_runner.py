"""Run talker and code predictor for scheduled sequences: prefill, decode step, sample codebook 0, predict frames.

Holds the device values of every sequence that has a KV slot: its embedded prompt, the codes sampled so far (for the
repetition penalty) and the hidden state between the talker and the sampler. They are freed with the slot, except those
of a parked sequence, which are kept with a copy of its keys and values. The scratch of a frame is internal to the
backend's `predict_frame`.

A model call that raises is repeated for each of its rows alone, so that a malformed row fails its own stream and no
other. This is safe because a call changes nothing but the positions that it computes: the repeated call writes the same
ones again, and the values of a sequence change only after its call has returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from legato.backends.base import Backend, FirstCodeInputs, FrameInputs
from legato.config.model import BpeTextConfig, TalkerConfig
from legato.engine.batches import RowsPerCall, batches
from legato.engine.kv_cache import KVCopy, KVPool, PrefixKey, PrefixStore, shared_positions
from legato.engine.leases import KVLease
from legato.engine.sequence import KVSlot, Sequence, text_to_feed
from legato.errors import GenerationError, NonFiniteError, StateError
from legato.models.noise import uniforms
from legato.models.sampling import SamplingRows
from legato.models.talker.embed import embed_prompt
from legato.models.voice import ClonedVoice
from legato.types import FinishReason, Frame, SequenceId, TextToken

_log = logging.getLogger(__name__)
_Row = TypeVar("_Row")
_Outcome = TypeVar("_Outcome")


class RowError(GenerationError):
    """A model call failed for one sequence."""


@dataclass(slots=True)
class _Work:
    """The device values of one sequence with a KV slot.

    `prompt` [P, D]; `seen` bool [V]: codes sampled so far; `prefix`: key of the part of the prompt that other requests
    may share; `hidden` [D]: the newest hidden state until its frame is predicted; `first_code`: codebook 0 of it.
    `parked`: the released slot of a parked sequence and its content.
    """

    prompt: Tensor
    seen: Tensor
    prefix: PrefixKey
    hidden: Tensor | None = None
    first_code: int | None = None
    parked: tuple[KVSlot, KVCopy] | None = None


class ModelRunner:
    """Runs talker and code predictor over the KV slots of `pool`, through `backend`."""

    def __init__(self, backend: Backend, pool: KVPool, *, rows_per_call: RowsPerCall, prefixes: PrefixStore) -> None:
        self.backend = backend
        self.config = backend.model.config
        self.pool = pool
        self.frames_sampled = 0
        self.failed_calls = 0
        """Model calls that raised."""
        self._failures: list[tuple[Sequence, GenerationError]] = []
        self._prefixes = prefixes
        self._rows_per_call = rows_per_call
        self._device = backend.model.device
        self._work: dict[SequenceId, _Work] = {}

    @property
    def positions(self) -> int:
        """Positions of one slot."""
        return self.pool.cache.positions

    @property
    def num_sequences(self) -> int:
        """Sequences with a slot, and parked ones."""
        return len(self._work)

    def add_sequence(self, sequence: Sequence, voice: ClonedVoice | None) -> None:
        """Embed the prompt of an admitted sequence and fill its slot from the prefix cache. `voice`: if cloned."""
        plan = sequence.slot.plan
        check_text_tokens([row.text for row in plan.rows if row.text is not None], self.config.talker)
        speaker = voice.speaker_vector if voice is not None else None
        codes = voice.codes if voice is not None else None
        prompt = embed_prompt(
            self.backend.talker,
            self.backend.code_predictor,
            sequence.slot.plan,
            speaker_vector=speaker,
            reference_codes=codes,
        )
        seen = torch.zeros(self.config.talker.vocab_size, dtype=torch.bool, device=self._device)
        prefix = (voice.key if voice is not None else "", plan.rows[: shared_positions(plan)])
        self._work[sequence.id] = _Work(prompt, seen, prefix)
        copy = self._prefixes.find(prefix)
        if copy is not None:
            sequence.slot.computed_positions = self.pool.copy_in(sequence.slot.lease, copy)

    def remove_sequence(self, sequence: Sequence) -> None:
        """Release the slot of a sequence, if it has one, and drop its values."""
        if sequence.has_slot:
            self.pool.release(sequence.slot.lease)
            sequence.detach_slot()
        self._work.pop(sequence.id, None)

    def slot_bytes(self, positions: int) -> int:
        """Bytes of a copy of the first `positions` of a slot."""
        return positions * self.pool.cache.bytes_per_position

    def park_sequence(self, sequence: Sequence) -> None:
        """Copy the slot of a sequence and release it. The other values of the sequence are kept."""
        slot = sequence.slot
        self._work[sequence.id].parked = (slot, self.pool.copy_out(slot.lease, slot.computed_positions))
        self.pool.release(slot.lease)
        sequence.detach_slot()

    def resume_sequence(self, sequence: Sequence, lease: KVLease) -> None:
        """Attach a slot to a parked sequence and restore its content; `StateError` if it is not parked."""
        work = self._work[sequence.id]
        if work.parked is None:
            raise StateError(f"sequence {sequence.id} is not parked")
        slot, copy = work.parked
        sequence.attach_slot(replace(slot, lease=lease))
        self.pool.copy_in(lease, copy)
        work.parked = None

    def prefill(self, slices: List[tuple[Sequence, int, int]]) -> list[Sequence]:
        """Compute prompt positions `start .. start + length` of each; returns those whose prompt is complete."""
        completed: list[Sequence] = []
        for batch in batches(slices, self._rows_per_call.talker):
            for (sequence, _, _), outcome in zip(batch, self._isolated(batch, self._prefill), strict=True):
                if isinstance(outcome, GenerationError):
                    self._failures.append((sequence, outcome))
                elif outcome:
                    completed.append(sequence)
        if completed and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the caller timestamps the end of prefill
        return completed

    def step(self, sequences: List[Sequence]) -> None:
        """Feed each sequence's newest frame with its next text token; leaves a fresh hidden state for the draw."""
        for batch in batches(sequences, self._rows_per_call.talker):
            for sequence, outcome in zip(batch, self._isolated(batch, self._step), strict=True):
                if isinstance(outcome, GenerationError):
                    self._failures.append((sequence, outcome))

    def take_failures(self) -> list[tuple[Sequence, GenerationError]]:
        """The sequences that failed in `prefill` and `step` since the previous call."""
        failures, self._failures = self._failures, []
        return failures

    def sample_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        """Codebook 0 of each sequence's next frame from its fresh hidden state; or the end of speech; or a failure."""
        rows = self._rows_per_call.first_code
        return [each for batch in batches(sequences, rows) for each in self._isolated(batch, self._sample_first_codes)]

    def predict_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        """All codes of the frames whose first codes were just drawn."""
        rows = self._rows_per_call.predictor
        return [each for batch in batches(sequences, rows) for each in self._isolated(batch, self._predict_frames)]

    def _isolated(
        self, rows: List[_Row], compute: Callable[[List[_Row]], List[_Outcome]]
    ) -> list[_Outcome | GenerationError]:
        """`compute(rows)`. If it raises, the outcome of each row alone, a `GenerationError` where that raises, too.

        If every row of several raises alone, the fault is not in the rows, and the error is raised.
        """
        try:
            return [*compute(rows)]
        except Exception as error:  # boundary: one malformed row must not fail the streams of the others
            self.failed_calls += 1
            _log.exception("a model call of %d rows failed", len(rows))
            if len(rows) == 1:
                return [_failed_row(error)]
            outcomes = [self._alone(row, compute) for row in rows]
            if all(isinstance(each, RowError) for each in outcomes):
                raise
            return outcomes

    def _alone(self, row: _Row, compute: Callable[[List[_Row]], List[_Outcome]]) -> _Outcome | GenerationError:
        try:
            return compute([row])[0]
        except Exception as error:  # boundary: see `_isolated`
            return _failed_row(error)

    def _prefill(self, slices: List[tuple[Sequence, int, int]]) -> list[bool]:
        """Compute one batch of slices. True for each prompt that is complete."""
        longest = max(length for _, _, length in slices)
        x = torch.stack([self._prompt_slice(sequence, start, length, longest) for sequence, start, length in slices])
        starts = [start for _, start, _ in slices]
        lengths = [length for _, _, length in slices]
        hidden = self._advance([sequence.slot for sequence, _, _ in slices], x, starts, lengths)
        complete: list[bool] = []
        for (sequence, start, length), state in zip(slices, hidden, strict=True):
            sequence.slot.computed_positions = start + length
            self._keep_start(sequence)
            complete.append(sequence.slot.computed_positions == len(sequence.slot.plan.rows))
            if complete[-1]:
                self._work[sequence.id].hidden = state
        return complete

    def _keep_start(self, sequence: Sequence) -> None:
        """Keep the start of a prompt if it is what has just been completed."""
        key, lease = self._work[sequence.id].prefix, sequence.slot.lease
        if sequence.slot.computed_positions == len(key[1]) and self._prefixes.find(key) is None:
            self._prefixes.keep(key, self.pool.copy_out(lease, sequence.slot.computed_positions))

    def _step(self, sequences: List[Sequence]) -> list[None]:
        slots, device = [sequence.slot for sequence in sequences], self.backend.input_device
        positions = [slot.computed_positions for slot in slots]
        span = self._span([position + 1 for position in positions])
        tokens = [self._next_text_token(each) for each in sequences]
        hidden = self.backend.decode_step(
            self.pool.cache,
            torch.tensor([slot.pending_frame for slot in slots], device=device),
            torch.tensor(tokens, device=device),
            self.pool.rows([slot.lease for slot in slots]),
            torch.tensor(positions, device=device),
            span=span,
        )
        for sequence, state in zip(sequences, hidden, strict=True):
            sequence.slot.computed_positions += 1
            sequence.slot.pending_frame = None
            self._work[sequence.id].hidden = state
        return [None] * len(sequences)

    def _next_text_token(self, sequence: Sequence) -> TextToken:
        """The text token fed with the newest frame. The scheduler steps only sequences that have it.

        `StateError` if it is outside the vocabulary: kernels do not check their indexes.
        """
        token = text_to_feed(sequence.slot.plan, sequence.track, sequence.frames - 1)
        if token is None:
            raise StateError(f"sequence {sequence.id} was stepped without its next text token")
        check_text_tokens([token], self.config.talker)
        return token

    def _sample_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        device, eos = self.backend.input_device, self.config.talker.ids.eos
        rows = SamplingRows.of([sequence.sampling for sequence in sequences], device)
        sampled = self.backend.sample_first(
            FirstCodeInputs(
                hidden=self._hidden(sequences),
                seen=torch.stack([self._work[sequence.id].seen for sequence in sequences]),
                frames=torch.tensor([sequence.frames for sequence in sequences], device=device),
                allow_eos=torch.tensor([not sequence.ends_with_track for sequence in sequences], device=device),
                temperature=rows.first.temperature,
                top_k=rows.first.top_k,
                top_p=rows.first.top_p,
                repetition_penalty=rows.repetition_penalty,
                uniform=self._noise(sequences)[:, 0],
            )
        )
        outcomes: list[int | FinishReason | GenerationError] = []
        for sequence, code, finite in zip(sequences, sampled.codes.tolist(), sampled.finite.tolist(), strict=True):
            if not finite:
                outcomes.append(_not_finite("the talker's logits", sequence))
            elif code == eos:
                outcomes.append(FinishReason.EOS)
            else:
                self._work[sequence.id].seen[code] = True
                self._work[sequence.id].first_code = code
                outcomes.append(code)
        return outcomes

    def _predict_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        device = self.backend.input_device
        settings = SamplingRows.of([sequence.sampling for sequence in sequences], device).residual
        sampled = self.backend.predict_frame(
            FrameInputs(
                hidden=self._hidden(sequences),
                first_code=torch.tensor([self._work[each.id].first_code for each in sequences], device=device),
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                noise=self._noise(sequences),
            )
        )
        self.frames_sampled += len(sequences)
        for sequence in sequences:
            self._work[sequence.id].hidden = None
        return [
            tuple(frame) if finite else _not_finite("the code predictor's logits", sequence)
            for sequence, frame, finite in zip(sequences, sampled.codes.tolist(), sampled.finite.tolist(), strict=True)
        ]

    def _advance(self, slots: List[KVSlot], x: Tensor, starts: list[int], lengths: list[int]) -> Tensor:
        span = self._span([start + length for start, length in zip(starts, lengths, strict=True)])
        rows = self.pool.rows([slot.lease for slot in slots])
        ragged = min(lengths) < x.shape[1]
        return self.backend.prefill(
            self.pool.cache,
            rows,
            x,
            torch.tensor(starts, device=self._device),
            torch.tensor(lengths, device=self._device) if ragged else None,
            span=span,
        )

    def _span(self, ends: list[int]) -> int:
        """The positions that a call looks at, `StateError` where they do not fit a slot."""
        if max(ends) > self.positions:
            raise StateError(f"position {max(ends)} is beyond the slot's {self.positions}")
        return max(ends)

    def _prompt_slice(self, sequence: Sequence, start: int, length: int, longest: int) -> Tensor:
        rows = self._work[sequence.id].prompt[start : start + length]
        return torch.nn.functional.pad(rows, (0, 0, 0, longest - length))

    def _hidden(self, sequences: List[Sequence]) -> Tensor:
        states = [self._work[sequence.id].hidden for sequence in sequences]
        return torch.stack([state for state in states if state is not None])

    def _noise(self, sequences: List[Sequence]) -> Tensor:
        Q = self.config.talker.num_codebooks
        rows = [uniforms(each.seed, each.number, each.frames, Q) for each in sequences]
        return torch.tensor(rows, dtype=torch.float64, device=self.backend.input_device)


def check_text_tokens(tokens: Iterable[TextToken], config: TalkerConfig) -> None:
    """`StateError` for a text token outside the vocabulary, or with the wrong number of ids."""
    text = config.text
    tables, size = (1, text.text_vocab_size) if isinstance(text, BpeTextConfig) else (text.tables, len(text.phones))
    for token in tokens:
        if len(token) != tables or not all(0 <= each < size for each in token):
            raise StateError(f"the text token {token} does not fit a vocabulary of {tables} x {size} ids")


def _failed_row(error: Exception) -> RowError:
    failure = RowError(f"the model could not compute this stream: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _not_finite(what: str, sequence: Sequence) -> NonFiniteError:
    return NonFiniteError(
        f"{what} are not finite at frame {sequence.frames} of segment {sequence.number}: "
        "if the talker runs in bf16, try fp32; if it runs in fp32, the checkpoint is damaged"
    )
