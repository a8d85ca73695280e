"""Run talker and code predictor for scheduled sequences: prefill, decode step, sample codebook 0, predict frames.

Holds device tensors for every sequence that has a KV slot: its embedded prompt, the codes sampled so far (for the
repetition penalty), and the hidden state passed from the talker to the sampler. They are freed with the slot. For a
parked sequence they are kept, together with a copy of its keys and values.

A model call that raises is repeated for each of its rows separately, so that a malformed row fails only its own stream.
Repeating is safe: a call writes only the positions that it computes, and the repeated call writes the same positions.
The state of a sequence changes only after its call has returned.
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
from legato.engine.kv_cache import KVCopy, KVPool, PrefixCache, PrefixKey, cacheable_prefix_len
from legato.engine.leases import KVLease
from legato.engine.sequence import KVSlot, Sequence, text_token_after
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
class _DeviceState:
    """Device tensors of one sequence with a KV slot.

    `prompt` [P, D]. `seen` bool [V]: codes sampled so far. `prefix`: key of the prompt prefix in the prefix cache.
    `hidden` [D]: hidden state of the last position, until its frame is predicted. `first_code`: sampled code of
    codebook 0 of that frame. `parked`: the released slot of a parked sequence, and a copy of its keys and values.
    """

    prompt: Tensor
    seen: Tensor
    prefix: PrefixKey
    hidden: Tensor | None = None
    first_code: int | None = None
    parked: tuple[KVSlot, KVCopy] | None = None


class ModelRunner:
    """Runs talker and code predictor over the KV slots of `pool`, through `backend`."""

    def __init__(self, backend: Backend, pool: KVPool, *, rows_per_call: RowsPerCall, prefixes: PrefixCache) -> None:
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
        self._device_state: dict[SequenceId, _DeviceState] = {}

    @property
    def max_seq_len(self) -> int:
        """Positions of one KV slot."""
        return self.pool.cache.positions

    @property
    def num_sequences(self) -> int:
        """Number of sequences with a KV slot, and of parked sequences."""
        return len(self._device_state)

    def add_sequence(self, sequence: Sequence, voice: ClonedVoice | None) -> None:
        """Embed the prompt of an admitted sequence and copy its cached prefix. `voice`: the cloned voice, or None."""
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
        prefix = (voice.key if voice is not None else "", plan.rows[: cacheable_prefix_len(plan)])
        self._device_state[sequence.id] = _DeviceState(prompt, seen, prefix)
        copy = self._prefixes.get(prefix)
        if copy is not None:
            sequence.slot.computed_positions = self.pool.copy_in(sequence.slot.lease, copy)

    def remove_sequence(self, sequence: Sequence) -> None:
        """Release the slot of a sequence, if it has one, and free its device tensors."""
        if sequence.has_slot:
            self.pool.release(sequence.slot.lease)
            sequence.detach_slot()
        self._device_state.pop(sequence.id, None)

    def slot_bytes(self, positions: int) -> int:
        """Size of a copy of the first `positions` of a slot."""
        return positions * self.pool.cache.bytes_per_position

    def park_sequence(self, sequence: Sequence) -> None:
        """Copy the content of a sequence's slot and release the slot. Its other device tensors are kept."""
        slot = sequence.slot
        self._device_state[sequence.id].parked = (slot, self.pool.copy_out(slot.lease, slot.computed_positions))
        self.pool.release(slot.lease)
        sequence.detach_slot()

    def resume_sequence(self, sequence: Sequence, lease: KVLease) -> None:
        """Copy the keys and values of a parked sequence into a new slot; `StateError` if it is not parked."""
        state = self._device_state[sequence.id]
        if state.parked is None:
            raise StateError(f"sequence {sequence.id} is not parked")
        slot, copy = state.parked
        sequence.attach_slot(replace(slot, lease=lease))
        self.pool.copy_in(lease, copy)
        state.parked = None

    def prefill(self, slices: List[tuple[Sequence, int, int]]) -> list[Sequence]:
        """Prefill slices (sequence, start, length) of prompts. Returns the sequences whose prompt is now complete."""
        completed: list[Sequence] = []
        for batch in batches(slices, self._rows_per_call.talker):
            for (sequence, _, _), outcome in zip(batch, self._isolated(batch, self._prefill), strict=True):
                if isinstance(outcome, GenerationError):
                    self._failures.append((sequence, outcome))
                elif outcome:
                    completed.append(sequence)
        if completed and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the caller records the time
        return completed

    def step(self, sequences: List[Sequence]) -> None:
        """Run one decode step. The input is each sequence's last frame and next text token."""
        for batch in batches(sequences, self._rows_per_call.talker):
            for sequence, outcome in zip(batch, self._isolated(batch, self._step), strict=True):
                if isinstance(outcome, GenerationError):
                    self._failures.append((sequence, outcome))

    def take_failures(self) -> list[tuple[Sequence, GenerationError]]:
        """The sequences that failed in `prefill` and `step` since the previous call."""
        failures, self._failures = self._failures, []
        return failures

    def sample_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        """Sample codebook 0 of the next frames. Returns the code, `FinishReason.EOS`, or an error for each sequence."""
        rows = self._rows_per_call.first_code
        return [each for batch in batches(sequences, rows) for each in self._isolated(batch, self._sample_first_codes)]

    def predict_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        """Predict the remaining codes of the frames whose codebook 0 was sampled. Returns a whole frame or an error."""
        rows = self._rows_per_call.predictor
        return [each for batch in batches(sequences, rows) for each in self._isolated(batch, self._predict_frames)]

    def _isolated(
        self, rows: List[_Row], compute: Callable[[List[_Row]], List[_Outcome]]
    ) -> list[_Outcome | GenerationError]:
        """Run `compute(rows)`. If it raises, compute each row separately; a row that raises gets a `GenerationError`.

        If every one of several rows raises, the rows are not the cause, and the original error is raised.
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
        hidden = self._run_prefill([sequence.slot for sequence, _, _ in slices], x, starts, lengths)
        complete: list[bool] = []
        for (sequence, start, length), state in zip(slices, hidden, strict=True):
            sequence.slot.computed_positions = start + length
            self._cache_prefix(sequence)
            complete.append(sequence.slot.computed_positions == len(sequence.slot.plan.rows))
            if complete[-1]:
                self._device_state[sequence.id].hidden = state
        return complete

    def _cache_prefix(self, sequence: Sequence) -> None:
        """Put the prefix into the prefix cache if the last slice ended exactly at its end."""
        key, lease = self._device_state[sequence.id].prefix, sequence.slot.lease
        if sequence.slot.computed_positions == len(key[1]) and self._prefixes.get(key) is None:
            self._prefixes.put(key, self.pool.copy_out(lease, sequence.slot.computed_positions))

    def _step(self, sequences: List[Sequence]) -> list[None]:
        slots, device = [sequence.slot for sequence in sequences], self.backend.input_device
        positions = [slot.computed_positions for slot in slots]
        span = self._attention_span([position + 1 for position in positions])
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
            self._device_state[sequence.id].hidden = state
        return [None] * len(sequences)

    def _next_text_token(self, sequence: Sequence) -> TextToken:
        """The text token that is added to the last frame. The scheduler steps only sequences that have it.

        `StateError` if it is outside the vocabulary, because kernels do not check indices.
        """
        token = text_token_after(sequence.slot.plan, sequence.tokenizer, sequence.frames - 1)
        if token is None:
            raise StateError(f"sequence {sequence.id} was scheduled without its next text token")
        check_text_tokens([token], self.config.talker)
        return token

    def _sample_first_codes(self, sequences: List[Sequence]) -> list[int | FinishReason | GenerationError]:
        device, eos = self.backend.input_device, self.config.talker.ids.eos
        rows = SamplingRows.of([sequence.sampling for sequence in sequences], device)
        sampled = self.backend.sample_first(
            FirstCodeInputs(
                hidden=self._hidden(sequences),
                seen=torch.stack([self._device_state[sequence.id].seen for sequence in sequences]),
                frames=torch.tensor([sequence.frames for sequence in sequences], device=device),
                allow_eos=torch.tensor([not sequence.ends_with_text for sequence in sequences], device=device),
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
                outcomes.append(_non_finite_error("the talker's logits", sequence))
            elif code == eos:
                outcomes.append(FinishReason.EOS)
            else:
                self._device_state[sequence.id].seen[code] = True
                self._device_state[sequence.id].first_code = code
                outcomes.append(code)
        return outcomes

    def _predict_frames(self, sequences: List[Sequence]) -> list[Frame | GenerationError]:
        device = self.backend.input_device
        settings = SamplingRows.of([sequence.sampling for sequence in sequences], device).residual
        sampled = self.backend.predict_frame(
            FrameInputs(
                hidden=self._hidden(sequences),
                first_code=torch.tensor([self._device_state[each.id].first_code for each in sequences], device=device),
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                noise=self._noise(sequences),
            )
        )
        self.frames_sampled += len(sequences)
        for sequence in sequences:
            self._device_state[sequence.id].hidden = None
        return [
            tuple(frame) if finite else _non_finite_error("the code predictor's logits", sequence)
            for sequence, frame, finite in zip(sequences, sampled.codes.tolist(), sampled.finite.tolist(), strict=True)
        ]

    def _run_prefill(self, slots: List[KVSlot], x: Tensor, starts: list[int], lengths: list[int]) -> Tensor:
        span = self._attention_span([start + length for start, length in zip(starts, lengths, strict=True)])
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

    def _attention_span(self, ends: list[int]) -> int:
        """Number of positions that attention reads; `StateError` if they do not fit in a slot."""
        if max(ends) > self.max_seq_len:
            raise StateError(f"position {max(ends)} exceeds the {self.max_seq_len} positions of a KV slot")
        return max(ends)

    def _prompt_slice(self, sequence: Sequence, start: int, length: int, longest: int) -> Tensor:
        rows = self._device_state[sequence.id].prompt[start : start + length]
        return torch.nn.functional.pad(rows, (0, 0, 0, longest - length))

    def _hidden(self, sequences: List[Sequence]) -> Tensor:
        states = [self._device_state[sequence.id].hidden for sequence in sequences]
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


def _non_finite_error(what: str, sequence: Sequence) -> NonFiniteError:
    return NonFiniteError(
        f"{what} are not finite at frame {sequence.frames} of segment {sequence.number}: "
        "if the talker runs in bf16, try fp32; if it already runs in fp32, the checkpoint may be damaged"
    )
