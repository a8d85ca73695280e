"""The CUDA graphs backend: captures the work of an engine step once and replays it with one launch.

The talker step, sampling of codebook 0, the rest of the frame, and codec windows of up to 8 frames are captured.
Prefill and longer windows run eagerly. A batch is padded to the next captured number of rows; padding rows read and
write a spare slot that is never leased. Attention spans and window lengths are rounded up in the same way and masked.
The graphs belong to one engine: they are bound to the addresses of its KV cache and its codec states.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from legato.backends.base import Backend, BatchInvariance, FirstCodeInputs, FrameInputs
from legato.backends.cuda_capture import Captured, Function, GraphRecorder, fitting, sizes
from legato.config.engine import EngineConfig
from legato.config.model import PhoneTextConfig
from legato.errors import StateError
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.sampling import Sampled, SamplerSettings
from legato.models.talker.state import KVRows, TalkerCache

LEAST_SPAN = 128
"""The shortest captured attention span. Shorter spans would save little time."""
WINDOW_FRAMES = (1, 2, 4, 8)
"""The codec window lengths that are captured."""

_log = logging.getLogger(__name__)


def spare_slots(config: EngineConfig, device: torch.device) -> int:
    """Spare slots that each pool needs for padding rows: 1 if graphs are captured (CUDA), else 0."""
    return int(config.cuda_graphs and device.type == "cuda")


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of an engine that graphs are bound to, and the spare slot of each pool."""

    cache: TalkerCache
    states: CodecStatePool
    spare_kv: int
    spare_codec: int


class CudaGraphsBackend:
    """Replays graphs of `inner` over the state of one engine."""

    name = "cuda_graphs"
    decodes_in_place = True
    needs_torch_threads = False
    input_device = torch.device("cpu")

    def __init__(self, inner: Backend, state: EngineState, config: EngineConfig) -> None:
        """Capture all graphs, which takes seconds.

        Raises `UnsupportedError`, which names the option to turn graphs off, if something cannot be captured.
        """
        self.inner = inner
        self.model, self.talker = inner.model, inner.talker
        self.code_predictor, self.decoder = inner.code_predictor, inner.decoder
        self.batch_invariance = BatchInvariance()
        self._state = state
        started_s = time.monotonic()
        rows = sizes(config.rows_per_call)
        with torch.inference_mode():
            recorder = GraphRecorder(inner.model.device)
            self._steps = CapturedSteps(recorder, inner, state, rows)
            _log.info("captured %d CUDA graphs of talker and code predictor", recorder.captured)
            self._windows = CapturedWindows(
                recorder, inner, state, sizes(min(config.max_num_seqs, config.rows_per_call))
            )
        seconds = time.monotonic() - started_s
        _log.info("captured %d CUDA graphs for up to %d rows in %.1f s", recorder.captured, rows[-1], seconds)

    @property
    def description(self) -> tuple[str, ...]:
        """See `Backend`."""
        return (*self.inner.description, "CUDA graphs")

    def prefill(
        self, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor | None, *, span: int
    ) -> Tensor:
        """See `Backend`. Not captured."""
        return self.inner.prefill(cache, rows, x, starts, lengths, span=span)

    def decode_step(
        self, cache: TalkerCache, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int
    ) -> Tensor:
        """See `Backend`."""
        if cache is not self._state.cache:
            raise StateError("these CUDA graphs were captured for another KV cache")
        return self._steps.decode_step(frames, tokens, rows, positions, span=span)

    def sample(self, logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
        """See `Backend`. Not captured."""
        return self.inner.sample(logits, settings, uniform)

    def sample_first_from_logits(self, logits: Tensor, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend`. Not captured."""
        return self.inner.sample_first_from_logits(logits, inputs)

    def sample_first(self, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend`."""
        return self._steps.sample_first(inputs)

    def predict_frame(self, inputs: FrameInputs) -> Sampled:
        """See `Backend`."""
        return self._steps.predict_frame(inputs)

    def decode_codec(self, history: CodecHistory, codes: Tensor, frames: Tensor | None) -> tuple[Tensor, CodecHistory]:
        """See `Backend`. Not captured."""
        return self.inner.decode_codec(history, codes, frames)

    def decode_codec_in_place(self, states: CodecStatePool, rows: CodecRows, codes: Tensor, frames: Tensor) -> Tensor:
        """See `Backend`."""
        if states is not self._state.states:
            raise StateError("these CUDA graphs were captured for other codec states")
        return self._windows.decode(rows, codes, frames)


class CapturedSteps:
    """Talker step, first code and frame of `backend`, captured for each number of rows, and the step for each span."""

    def __init__(self, recorder: GraphRecorder, backend: Backend, state: EngineState, rows: tuple[int, ...]) -> None:
        self._rows = rows
        self._spans = sizes(state.cache.positions, LEAST_SPAN)
        self._step = {
            (count, span): Captured(
                recorder,
                f"a talker step of {count} rows",
                _decode_step(backend, state.cache, span),
                _idle_step(backend, state.spare_kv, count),
            )
            for count in rows
            for span in self._spans
        }
        self._first = {
            count: Captured(
                recorder, f"first codes of {count} rows", _sample_first(backend), _idle_first_code(backend, count)
            )
            for count in rows
        }
        self._frame = {
            count: Captured(recorder, f"frames of {count} rows", _predict_frame(backend), _idle_frame(backend, count))
            for count in rows
        }

    def decode_step(self, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int) -> Tensor:
        """See `Backend.decode_step`."""
        captured = self._step[fitting(self._rows, len(positions)), fitting(self._spans, span)]
        (hidden,) = captured(frames, tokens, rows.index, positions)
        return hidden

    def sample_first(self, inputs: FirstCodeInputs) -> Sampled:
        """See `Backend.sample_first`."""
        return Sampled(*self._first[fitting(self._rows, len(inputs.hidden))](*inputs))

    def predict_frame(self, inputs: FrameInputs) -> Sampled:
        """See `Backend.predict_frame`."""
        return Sampled(*self._frame[fitting(self._rows, len(inputs.hidden))](*inputs))


class CapturedWindows:
    """Codec windows of `backend`, captured for each number of rows and each of `WINDOW_FRAMES`."""

    def __init__(self, recorder: GraphRecorder, backend: Backend, state: EngineState, rows: tuple[int, ...]) -> None:
        self._backend = backend
        self._states = state.states
        self._rows = rows
        self._captured = {
            (count, frames): Captured(
                recorder,
                f"codec windows of {count} rows and {frames} frames",
                _window(backend, state.states),
                _idle_window(backend, state.spare_codec, count, frames),
            )
            for count in rows
            for frames in WINDOW_FRAMES
        }

    def decode(self, rows: CodecRows, codes: Tensor, counts: Tensor) -> Tensor:
        """Samples of `codes` [B, T, Q]. `counts` int64 [B]: valid frames per row. Longer windows run eagerly."""
        longest = codes.shape[1]
        if longest > WINDOW_FRAMES[-1]:
            device = self._states.device
            return self._backend.decode_codec_in_place(self._states, rows, codes.to(device), counts.to(device))
        frames = fitting(WINDOW_FRAMES, longest)
        padded = functional.pad(codes, (0, 0, 0, frames - longest))
        captured = self._captured[fitting(self._rows, len(counts)), frames]
        (samples,) = captured(rows.slots, padded, counts)
        return samples


# --- the captured functions, and their padding rows -------------------------------------------------------------------


def _decode_step(backend: Backend, cache: TalkerCache, span: int) -> Function:
    def step(frames: Tensor, tokens: Tensor, slots: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return (backend.decode_step(cache, frames, tokens, KVRows(slots), positions, span=span),)

    return step


def _sample_first(backend: Backend) -> Function:
    return lambda *inputs: backend.sample_first(FirstCodeInputs(*inputs))


def _predict_frame(backend: Backend) -> Function:
    return lambda *inputs: backend.predict_frame(FrameInputs(*inputs))


def _window(backend: Backend, states: CodecStatePool) -> Function:
    def decode(slots: Tensor, codes: Tensor, frames: Tensor) -> tuple[Tensor, ...]:
        return (backend.decode_codec_in_place(states, CodecRows(slots), codes, frames),)

    return decode


def _idle_step(backend: Backend, spare: int, rows: int) -> tuple[Tensor, ...]:
    talker = backend.model.config.talker
    ids = talker.text.tables if isinstance(talker.text, PhoneTextConfig) else 1
    integers = partial(torch.full, dtype=torch.int64, device=backend.model.device)
    frames, tokens = integers((rows, talker.num_codebooks), 0), integers((rows, ids), 0)
    return frames, tokens, integers((rows,), spare), integers((rows,), 0)


def _idle_first_code(backend: Backend, rows: int) -> FirstCodeInputs:
    device, talker = backend.model.device, backend.model.config.talker
    return FirstCodeInputs(
        hidden=_idle_hidden(backend, rows),
        seen=torch.zeros(rows, talker.vocab_size, dtype=torch.bool, device=device),
        frames=torch.zeros(rows, dtype=torch.int64, device=device),
        allow_eos=torch.ones(rows, dtype=torch.bool, device=device),
        temperature=torch.ones(rows, device=device),
        top_k=torch.ones(rows, dtype=torch.int64, device=device),
        top_p=torch.ones(rows, device=device),
        repetition_penalty=torch.ones(rows, device=device),
        uniform=torch.zeros(rows, dtype=torch.float64, device=device),
    )


def _idle_frame(backend: Backend, rows: int) -> FrameInputs:
    device = backend.model.device
    return FrameInputs(
        hidden=_idle_hidden(backend, rows),
        first_code=torch.zeros(rows, dtype=torch.int64, device=device),
        temperature=torch.ones(rows, device=device),
        top_k=torch.ones(rows, dtype=torch.int64, device=device),
        top_p=torch.ones(rows, device=device),
        noise=torch.zeros(rows, backend.model.config.talker.num_codebooks, dtype=torch.float64, device=device),
    )


def _idle_hidden(backend: Backend, rows: int) -> Tensor:
    model = backend.model
    return torch.zeros(rows, model.config.talker.stack.hidden_size, dtype=model.language_dtype, device=model.device)


def _idle_window(backend: Backend, spare: int, rows: int, frames: int) -> tuple[Tensor, ...]:
    integers = partial(torch.full, dtype=torch.int64, device=backend.model.device)
    codes = integers((rows, frames, backend.decoder.config.num_quantizers), 0)
    return integers((rows,), spare), codes, integers((rows,), frames)
